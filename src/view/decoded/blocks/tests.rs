use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::room::{BENCHES, IN_FLIGHT, IN_HAND, SHARE};
use super::*;

fn key(of: StateId, n: u32) -> BlockKey {
    BlockKey { of, chunk: Position(0), start: n * 100 }
}

fn claim(blocks: &Blocks, key: BlockKey) -> Turn {
    blocks.claim(key, 100, &(0..100), None)
}

fn is_ready(blocks: &Blocks, key: BlockKey) -> bool {
    blocks.ready([(key, &(0..100))].into_iter())[0].is_some()
}

fn add(blocks: &Blocks, key: BlockKey, keep: Option<Keep>) {
    assert!(matches!(blocks.claim(key, 100, &(0..100), keep), Turn::Mine));
    blocks.put(key, vec![1; 100], 100);
}

#[test]
fn what_was_used_least_goes_and_the_limit_is_kept() {
    let blocks = Blocks::new(10 * (100 + OVERHEAD), 1, None);
    let of = blocks.new_state();
    for n in 0..1000 {
        add(&blocks, key(of, n), None);
        assert!(blocks.bytes() <= blocks.limit());
        // The first one is used all the time.
        assert!(is_ready(&blocks, key(of, 0)), "{n}");
    }
    let there: Vec<u32> = (0..1000).filter(|n| is_ready(&blocks, key(of, *n))).collect();
    assert_eq!(there, [0].into_iter().chain(991..1000).collect::<Vec<_>>());
}

#[test]
fn what_is_kept_stays_until_nobody_comes_back() {
    let room = 100 + OVERHEAD;
    let blocks = Blocks::new(10 * room, 1, None);
    let of = blocks.new_state();
    let keep = Some(Keep { most: 4 * room, patience: 50 * room });
    for n in 0..20 {
        add(&blocks, key(of, n), keep);
    }
    for n in 20..120 {
        add(&blocks, key(of, n), None);
        // Of four that are kept, the last one is used no more.
        assert!((0..3).all(|n| is_ready(&blocks, key(of, n))), "{n}");
    }
    assert!(!is_ready(&blocks, key(of, 3)));
    assert!(blocks.bytes() <= blocks.limit());
    // One that was read to its end makes room for another.
    let block = blocks.ready([(key(of, 0), &(0..100))].into_iter()).remove(0).unwrap();
    blocks.served(vec![(key(of, 0), Arc::clone(&block), 60)]);
    assert!(is_ready(&blocks, key(of, 0)));
    blocks.served(vec![(key(of, 0), block, 40)]);
    assert!(!is_ready(&blocks, key(of, 0)));
}

#[test]
fn a_part_of_a_block_serves_who_needs_no_more() {
    let blocks = Blocks::new(10_000, 1, None);
    let key = key(blocks.new_state(), 0);
    blocks.put_part(key, &Arc::new(Block::part(vec![7; 20], 30)));
    assert!(matches!(blocks.claim(key, 100, &(35..50), None), Turn::Ready(block) if block.begin() == 30));
    assert!(matches!(blocks.claim(key, 100, &(35..51), None), Turn::Mine));
    blocks.put_part(key, &Arc::new(Block::part(vec![7; 20], 30)));
    blocks.put(key, vec![1; 100], 100);
    assert!(is_ready(&blocks, key), "whoever decodes it is not disturbed");
}

/// Says which block it decodes, and waits until it is told what to do.
struct Gate {
    blocks: Arc<Blocks>,
    begun: Sender<BlockKey>,
    orders: Mutex<Receiver<Order>>,
    count: AtomicUsize,
}

#[derive(Debug)]
enum Order {
    Succeed,
    Fail,
    Panic,
}

impl Work for Gate {
    fn decode(&self, key: BlockKey, len: u32) {
        self.count.fetch_add(1, Relaxed);
        self.begun.send(key).unwrap();
        match self.orders.lock().recv().unwrap() {
            Order::Succeed => drop(self.blocks.put(key, vec![1; len as usize], len)),
            Order::Fail => {}
            // Nothing is printed.
            Order::Panic => std::panic::resume_unwind(Box::new(())),
        }
    }
}

type Gated = (Arc<Blocks>, Arc<Gate>, Receiver<BlockKey>, Sender<Order>);

fn gate() -> Gated {
    let blocks = Blocks::new(10_000, 1, None);
    let ((begun, begins), (order, orders)) = (channel(), channel());
    let gate = Gate { blocks: Arc::clone(&blocks), begun, orders: Mutex::new(orders), count: AtomicUsize::new(0) };
    (blocks, Arc::new(gate), begins, order)
}

fn expect(blocks: &Blocks, gate: &Arc<Gate>, keys: &[BlockKey]) {
    let work: Arc<dyn Work> = gate.clone();
    blocks.expect(&work, &keys.iter().map(|key| (*key, 100, None)).collect::<Vec<_>>(), 10_000, false);
}

#[test]
fn a_block_is_decoded_once_for_all_who_wait() {
    let (blocks, gate, begins, order) = gate();
    let key = key(blocks.new_state(), 0);
    expect(&blocks, &gate, &[key, key]);
    assert_eq!(begins.recv(), Ok(key));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| matches!(claim(&blocks, key), Turn::Ready(_)))).collect();
        assert!(!is_ready(&blocks, key));
        order.send(Order::Succeed).unwrap();
        assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap()));
    });
    assert_eq!((gate.count.load(Relaxed), blocks.counts().decoded.load(Relaxed)), (1, 1));
}

#[test]
fn who_waits_goes_on_when_decoding_fails_or_panics() {
    for end in [Order::Fail, Order::Panic] {
        let (blocks, gate, begins, order) = gate();
        let of = blocks.new_state();
        expect(&blocks, &gate, &[key(of, 0)]);
        assert_eq!(begins.recv(), Ok(key(of, 0)));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| matches!(claim(&blocks, key(of, 0)), Turn::Mine));
            order.send(end).unwrap();
            assert!(waiter.join().unwrap(), "the turn to decode it goes to who waits");
            blocks.put(key(of, 0), vec![1; 100], 100);
        });
        // And there is somebody to decode others.
        order.send(Order::Succeed).unwrap();
        expect(&blocks, &gate, &[key(of, 1)]);
        assert_eq!(begins.recv(), Ok(key(of, 1)));
        assert!(matches!(claim(&blocks, key(of, 1)), Turn::Ready(_)));
    }
}

#[test]
fn what_is_forgotten_while_it_is_decoded_finds_no_place() {
    let (blocks, gate, begins, order) = gate();
    let (of, other) = (blocks.new_state(), blocks.new_state());
    expect(&blocks, &gate, &[key(of, 0), key(of, 1), key(other, 2)]);
    assert_eq!(begins.recv(), Ok(key(of, 0)));
    blocks.forget(of);
    assert!(matches!(claim(&blocks, key(of, 0)), Turn::Mine), "nobody waits for it");
    blocks.give_up(key(of, 0));
    order.send(Order::Succeed).unwrap();
    assert_eq!(begins.recv(), Ok(key(other, 2)), "what waited is not decoded at all");
    order.send(Order::Succeed).unwrap();
    assert!(matches!(claim(&blocks, key(other, 2)), Turn::Ready(_)));
    assert!(!is_ready(&blocks, key(of, 0)));
    assert_eq!(blocks.bytes(), 100 + OVERHEAD);
}

#[test]
fn who_comes_to_a_block_before_its_turn_decodes_it() {
    let (blocks, gate, begins, order) = gate();
    let of = blocks.new_state();
    expect(&blocks, &gate, &[key(of, 0), key(of, 1), key(of, 2)]);
    assert_eq!(begins.recv(), Ok(key(of, 0)));
    assert!(matches!(claim(&blocks, key(of, 1)), Turn::Mine));
    order.send(Order::Succeed).unwrap();
    assert_eq!(begins.recv(), Ok(key(of, 2)));
    order.send(Order::Succeed).unwrap();
    assert!(matches!(claim(&blocks, key(of, 2)), Turn::Ready(_)));
}

#[test]
fn few_are_decoded_at_one_time_when_they_are_large() {
    let blocks = Blocks::new(0, 4, None);
    let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let large = (IN_FLIGHT / SHARE / 2) as u32 + 1;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    blocks.with_bench(large, |_| {
                        most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
                        std::thread::yield_now();
                        now.fetch_sub(1, Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(most.into_inner(), 1);
    assert!(blocks.shared.room.benches.lock().bytes <= BENCHES);
}

#[test]
fn readers_hold_no_more_than_there_is_room_for() {
    let blocks = Blocks::new(0, 4, None);
    let (held, most) = (AtomicU64::new(0), AtomicU64::new(0));
    for size in [IN_HAND / 4, IN_HAND / 2 + 1, IN_HAND * 2] {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _in_hand = blocks.in_hand(size);
                        most.fetch_max(held.fetch_add(size, Relaxed) + size, Relaxed);
                        std::thread::yield_now();
                        held.fetch_sub(size, Relaxed);
                    }
                });
            }
        });
        assert!(most.swap(0, Relaxed) <= size.max(IN_HAND), "{size}");
    }
}

#[test]
fn where_no_thread_can_be_started_nothing_waits_for_one() {
    static STARTS: AtomicUsize = AtomicUsize::new(0);
    let blocks = Blocks::spawning(10_000, 2, None, |body| match STARTS.fetch_add(1, Relaxed) {
        0..3 => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        _ => std::thread::Builder::new().spawn(body),
    });
    let of = blocks.new_state();
    let ((begun, begins), (order, orders)) = (channel(), channel());
    let gate = Gate { blocks: Arc::clone(&blocks), begun, orders: Mutex::new(orders), count: AtomicUsize::new(0) };
    let gate = Arc::new(gate);
    for n in 0..3 {
        expect(&blocks, &gate, &[key(of, n)]);
        let state = blocks.shared.state.lock();
        assert_eq!((state.started, state.jobs.len(), state.memory.bytes(), state.memory.waiting()), (0, 0, 0, 0));
    }
    order.send(Order::Succeed).unwrap();
    expect(&blocks, &gate, &[key(of, 3)]);
    assert_eq!(begins.recv(), Ok(key(of, 3)), "a thread is tried again");
}

/// Forgets its blocks when nobody has it any more, as the data of a frame does.
struct Forgetful {
    blocks: Arc<Blocks>,
    of: StateId,
    gone: Sender<()>,
}

impl Work for Forgetful {
    fn decode(&self, _key: BlockKey, _len: u32) {}
}

impl Drop for Forgetful {
    fn drop(&mut self) {
        self.blocks.forget(self.of);
        let _ = self.gone.send(());
    }
}

#[test]
fn jobs_may_be_the_last_who_have_what_they_work_on() {
    for others_forget in [false, true] {
        let (blocks, gate, begun, orders) = gate();
        let busy = key(blocks.new_state(), 0);
        expect(&blocks, &gate, &[busy]);
        assert_eq!(begun.recv(), Ok(busy));
        // The one thread is at work. What waits behind it is decoded by a reader, and then forgotten by the view.
        let (gone, is_gone) = channel();
        let of = blocks.new_state();
        let forgetful = Arc::new(Forgetful { blocks: Arc::clone(&blocks), of, gone });
        let work: Arc<dyn Work> = forgetful;
        blocks.expect(&work, &[(key(of, 0), 100, None)], 1000, false);
        drop(work);
        add(&blocks, key(of, 0), None);
        if others_forget {
            let blocks = Arc::clone(&blocks);
            std::thread::spawn(move || blocks.forget(of));
        } else {
            orders.send(Order::Succeed).unwrap();
        }
        is_gone.recv_timeout(std::time::Duration::from_secs(20)).expect("whoever drops the job waits for himself");
        let _ = orders.send(Order::Succeed);
    }
}
