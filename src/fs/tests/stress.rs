//! Everything that makes the kernel hold a lock, at the same time as everything that makes it wait for one.

use super::*;

#[test]
fn notifications_never_lock_up_with_clients() {
    if !fuse() {
        return;
    }
    in_time("clients and notifications", || {
        let mount = Mount::new(MemoryView::new(false, [("a", vec![1; 300_000]), ("b", vec![2; 300_000])]));
        let dir = mount.dir.path();
        std::thread::scope(|scope| {
            for worker in 0..3 {
                scope.spawn(move || {
                    for round in 0..300 {
                        let (new, other) = (dir.join(format!("w{worker}-{round}")), dir.join(format!("w{worker}-other")));
                        fs::write(&new, [0; 5000]).unwrap();
                        fs::rename(&new, &other).unwrap();
                        let _ = File::create(dir.join(format!("drop-w{worker}-other"))).map(close);
                        let _ = fs::remove_file(&other);
                    }
                });
            }
            scope.spawn(move || {
                for _ in 0..300 {
                    File::open(dir).unwrap().sync_all().unwrap();
                }
            });
            scope.spawn(move || {
                for _ in 0..300 {
                    let mut file = OpenOptions::new().write(true).open(dir.join("a")).unwrap();
                    file.write_all(b"BAD").unwrap();
                    file.sync_all().unwrap_err();
                    let _ = close(file);
                    assert_eq!(fs::read(dir.join("a")).unwrap(), [1; 300_000]);
                }
            });
            scope.spawn(move || {
                for _ in 0..100 {
                    for entry in fs::read_dir(dir).unwrap() {
                        let _ = entry.unwrap().metadata();
                    }
                    assert_eq!(fs::read(dir.join("b")).unwrap(), [2; 300_000]);
                }
            });
        });
    });
}
