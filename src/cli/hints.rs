//! Suggests a known mount option for an unknown one.

/// All words that mean something, those that need a value with `=`.
const KNOWN: &[&str] = &[
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "sync",
    "async",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "allow_other",
    "allow_root",
    "auto_unmount",
    "default_permissions",
    "nodefault_permissions",
    "create",
    "locking",
    "follow_links",
    "user_xattr",
    "nouser_xattr",
    "low_latency",
    "remount",
    "fsname=",
    "uid=",
    "gid=",
    "umask=",
    "fmask=",
    "dmask=",
    "cache_size=",
    "threads=",
    "log_file=",
    "log_level=",
    "show=",
    "dtype=",
    "spill=",
    "wait=",
    #[cfg(feature = "remote")]
    "endpoint=",
    #[cfg(feature = "remote")]
    "region=",
    #[cfg(feature = "remote")]
    "anonymous",
    #[cfg(feature = "remote")]
    "headers=",
    #[cfg(feature = "remote")]
    "refresh=",
    #[cfg(feature = "remote")]
    "timeout=",
    #[cfg(feature = "remote")]
    "connections=",
    #[cfg(feature = "remote")]
    "unsafe-immutable",
    "disk_cache=",
];

/// What has other names elsewhere.
const ELSEWHERE: &[(&str, &str)] = &[
    ("readonly", "ro"),
    ("rdonly", "ro"),
    ("readwrite", "rw"),
    ("writable", "rw"),
    ("user", "uid="),
    ("owner", "uid="),
    ("group", "gid="),
    ("mode", "umask="),
    ("filemode", "fmask="),
    ("dirmode", "dmask="),
    ("cache", "cache_size="),
    ("log", "log_file="),
    ("verbose", "log_level="),
    ("debug", "log_level="),
    ("lock", "locking"),
    ("xattr", "user_xattr"),
    ("noxattr", "nouser_xattr"),
    ("allow_all", "allow_other"),
    ("allow_users", "allow_other"),
    #[cfg(feature = "remote")]
    ("url", "endpoint="),
    #[cfg(feature = "remote")]
    ("endpoint_url", "endpoint="),
    #[cfg(feature = "remote")]
    ("host", "endpoint="),
    #[cfg(feature = "remote")]
    ("public", "anonymous"),
    #[cfg(feature = "remote")]
    ("no_sign_request", "anonymous"),
    #[cfg(feature = "remote")]
    ("anon", "anonymous"),
    #[cfg(feature = "remote")]
    ("parallel", "connections="),
    ("use_cache", "disk_cache="),
    ("cache_dir", "disk_cache="),
];

/// What may be added to a complaint about a word: nothing, if nothing is near.
pub(super) fn of(word: &str) -> String {
    let name = word.split('=').next().unwrap_or_default();
    match nearest(name) {
        Some(known) => format!("; did you mean '{known}'?"),
        None => String::new(),
    }
}

fn nearest(name: &str) -> Option<&'static str> {
    // As it would be without what people put between words.
    let plain =
        |name: &str| -> String { name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect() };
    let name = plain(name);
    let elsewhere = ELSEWHERE.iter().find(|(word, _)| plain(word) == name).map(|(_, known)| *known);
    elsewhere.or_else(|| {
        let most = name.len() / 3;
        let near = KNOWN.iter().map(|known| (strsim::osa_distance(&plain(known), &name), *known));
        let near = near.filter(|(distance, _)| *distance <= most);
        near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
    })
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::*;

    #[test]
    fn every_known_word_is_one() {
        for word in KNOWN {
            let said = Options::default().add(word.as_ref());
            let good = if word.ends_with('=') { said.is_err_and(|what| what.contains("needs a value")) } else { said.is_ok() };
            assert!(good || ["fsname=", "log_file="].contains(word), "{word}");
        }
        for (word, known) in ELSEWHERE {
            assert!(KNOWN.contains(known), "{word}");
        }
    }

    #[test]
    fn what_was_meant() {
        for (word, known) in [
            ("readonly", "ro"),
            ("read-only", "ro"),
            ("Read_Only", "ro"),
            ("allow-other", "allow_other"),
            ("allow_others", "allow_other"),
            ("allow_otehr", "allow_other"),
            ("user=me", "uid="),
            ("cachesize=1G", "cache_size="),
            ("thread=2", "threads="),
            ("loglevel=debug", "log_level="),
            ("nolocking", "locking"),
            ("no_exec", "noexec"),
            ("cache-dir=/x", "disk_cache="),
        ] {
            assert_eq!(of(word), format!("; did you mean '{known}'?"), "{word}");
        }
        #[cfg(feature = "remote")]
        for (word, known) in [("anon", "anonymous"), ("endpoints=x", "endpoint="), ("no_sign_request", "anonymous")] {
            assert_eq!(of(word), format!("; did you mean '{known}'?"), "{word}");
        }
        for word in ["nonsense", "", "x", "é", "zz=ro"] {
            assert_eq!(of(word), "", "{word}");
        }
    }
}
