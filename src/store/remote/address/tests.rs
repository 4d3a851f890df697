use super::*;

fn good(text: &str) -> Address {
    Address::parse(text).unwrap_or_else(|| panic!("{text} is a path")).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn bad(text: &str) -> String {
    match Address::parse(text) {
        Some(Err(error)) => error,
        other => panic!("{text} is {other:?}"),
    }
}

#[test]
fn paths_are_none() {
    for text in
        ["", "a", "/x/y", "s3:/x", "s3:x", "a:b", "./s3://x", "://x", "ftp://x/y", "file:///x", "xs3://b/k", "s3 ://b/k", "é://b"]
    {
        assert!(Address::parse(text).is_none(), "{text}");
    }
    assert!(Address::parse(OsStr::from_bytes(b"/x/\xff")).is_none());
}

#[test]
fn forms() {
    for (text, shown, kind, bucket, key, name) in [
        ("s3://bucket/path/big.b2frame", "s3://bucket/path/big.b2frame", Kind::S3, "bucket", "path/big.b2frame", "big.b2frame"),
        ("S3://Bucket_1.x/k/", "s3://Bucket_1.x/k", Kind::S3, "Bucket_1.x", "k", "k"),
        ("s3a://b", "s3a://b", Kind::S3, "b", "", "b"),
        ("s3://b/", "s3://b", Kind::S3, "b", "", "b"),
        ("s3://b/a%20b #+é", "s3://b/a%20b #+é", Kind::S3, "b", "a%20b #+é", "a%20b #+é"),
        ("gs://b/x/y z", "gs://b/x/y z", Kind::Google, "b", "x/y z", "y z"),
        ("az://c/k@v:1", "az://c/k@v:1", Kind::Azure, "c", "k@v:1", "k@v:1"),
        ("azure://$web/k", "azure://$web/k", Kind::Azure, "$web", "k", "k"),
        ("abfss://c@acc.dfs.core.windows.net/k", "abfss://c@acc.dfs.core.windows.net/k", Kind::Azure, "c", "k", "k"),
        ("https://h.org:444/p/a.b2nd", "https://h.org:444/p/a.b2nd", Kind::Http, "h.org", "", "a.b2nd"),
        (
            "https://bucket.s3.amazonaws.com/k",
            "https://bucket.s3.amazonaws.com/k",
            Kind::Http,
            "bucket.s3.amazonaws.com",
            "",
            "k",
        ),
        ("HTTP://H.org", "http://h.org/", Kind::Http, "h.org", "", "frame"),
        ("http://[::1]:80/x#y", "http://[::1]/x", Kind::Http, "[::1]", "", "x"),
    ] {
        let address = good(text);
        assert_eq!(address.to_string(), shown);
        assert_eq!((address.kind(), address.bucket(), address.key().as_ref()), (kind, bucket, key), "{text}");
        assert_eq!((address.name().as_str(), address.is_http()), (name, kind == Kind::Http), "{text}");
    }
}

#[test]
fn secrets_are_kept_and_not_shown() {
    let text = "https://mister:SECRET@h.org/a%2Fb/c%20d+e~.b2nd?X-Amz-Signature=SECRET&a=%2B%7e+'x";
    let address = good(text);
    assert_eq!(address.to_string(), "https://h.org/a%2Fb/c%20d+e~.b2nd?...");
    for shown in [format!("{address:?}"), format!("{:?}", address.join("x")), format!("{:?}", Some(address.parent()))] {
        assert!(!shown.contains("SECRET") && !shown.contains("mister"), "{shown}");
    }
    // What is signed is sent as it was given; only an apostrophe is encoded, which no signer leaves as it is.
    let sent = address.url().unwrap().as_str();
    assert_eq!(sent, text.replace('\'', "%27"));
    // And the path through the store that is made of it.
    assert_eq!(address.key(), Key::default());
}

#[test]
fn errors_say_no_secrets() {
    for text in [
        "s3://AKIA:SECRET@bucket/key",
        "s3://SECRET:x/key",
        "az://container/key?sig=SECRET",
        "az://container?sig=SECRET",
        "abfs://c@SECRET.evil.org/k",
        "abfs://c@SECRET/k",
        "https://u:SECRET@:80/?SECRET",
        "https://h:SECRET/?SECRET",
        "https://u:SECRET@h\\x/",
        "http://u:SECRET@/x",
    ] {
        let error = bad(text);
        assert!(!error.contains("SECRET") && error.contains("expected") || error.contains("cannot be read"), "{text}: {error}");
    }
}

#[test]
fn what_is_refused() {
    let long = "k".repeat(LONGEST_KEY + 1);
    for (text, what) in [
        ("s3://", "no bucket"),
        ("s3:///k", "no bucket"),
        ("az:///k", "no container"),
        ("s3://b//k", "empty part"),
        ("s3://b/k//", "empty part"),
        ("s3://b/a//k", "empty part"),
        ("s3://b/../k", "'..'"),
        ("s3://b/a/./k", "'.'"),
        ("s3://b/a/..", "'..'"),
        ("s3://b/a\0b", "control character"),
        ("s3://b/a\nb", "control character"),
        ("s3://b c/k", "name is not valid"),
        ("s3://b%2F/k", "name is not valid"),
        ("s3://../k", "name is not valid"),
        ("s3://b..c/k", "name is not valid"),
        ("s3://-b/k", "name is not valid"),
        ("gs://$b/k", "name is not valid"),
        ("https://h/a\nb", "control character"),
        ("https:///", "host"),
        (&format!("s3://b/{long}"), "1025 bytes"),
        (&format!("https://h/{}", "k".repeat(LONGEST_URL)), "at most 16384"),
        (&format!("s3://{}/k", "b".repeat(LONGEST_BUCKET + 1)), "name is not valid"),
    ] {
        assert!(bad(text).contains(what), "{text}: {}", bad(text));
    }
    assert!(Address::parse(OsStr::from_bytes(b"s3://b/\xff")).unwrap().unwrap_err().contains("UTF-8"));
    good(&format!("s3://b/{}", "k".repeat(LONGEST_KEY)));
}

#[test]
fn names_are_names_of_files() {
    let long = "n".repeat(LONGEST_NAME + 1);
    for (text, name) in [
        ("https://h/a%20b.b2nd", "a b.b2nd"),
        ("https://h/a/?x", "a"),
        ("https://h/a%2Fb", "frame"),
        ("https://h/%00", "frame"),
        ("https://h/a%0Ab", "frame"),
        ("https://h/a%C2%85b", "frame"),
        ("https://h/%FF", "frame"),
        ("https://h/x%252e", "x%2e"),
        ("https://h/%2e%2e", "frame"),
        (&format!("s3://b/{long}"), "frame"),
        (&format!("https://h/{long}"), "frame"),
    ] {
        assert_eq!(good(text).name(), name, "{text}");
    }
}

#[test]
fn beneath_and_above() {
    let join = |text: &str, name: &str| good(text).join(name).map(|address| address.to_string());
    assert_eq!(join("s3://b/x", "chunks.b2frame").unwrap(), "s3://b/x/chunks.b2frame");
    assert_eq!(join("s3://b", "a/b").unwrap(), "s3://b/a/b");
    assert_eq!(join("https://h/x/", "a b").unwrap(), "https://h/x/a%20b");
    assert_eq!(join("https://h?q=1", "a").unwrap(), "https://h/a?...");
    assert_eq!(join("s3://b/x", "").unwrap(), "s3://b/x");
    for name in ["..", "a/../b", "/a", "a//b", "a/", "\0"] {
        assert!(join("s3://b/x", name).is_err() && join("https://h/x", name).is_err(), "{name}");
    }
    assert!(join(&format!("s3://b/{}", "k".repeat(1020)), "abcd").unwrap_err().contains("1025 bytes"));
    let parent = |text: &str| good(text).parent().map(|address| address.to_string());
    assert_eq!(parent("s3://b/x/y").unwrap(), "s3://b/x");
    assert_eq!(parent("s3://b/x").unwrap(), "s3://b");
    assert_eq!(parent("s3://b"), None);
    assert_eq!(parent("https://h/x/y/").unwrap(), "https://h/x");
    assert_eq!(parent("https://h/x").unwrap(), "https://h/");
    assert_eq!(parent("https://h/"), None);
}

#[test]
fn secrets_are_found_in_what_is_no_address_too() {
    for (text, shown) in [
        ("https://u:SECRET@h/p?SECRET", "https://...@h/p?..."),
        ("https://u@SECRET@h:99999/", "https://...@h:99999/"),
        ("HTTP://h?SECRET/@x#SECRET", "HTTP://h?..."),
        ("s3://AK:SECRET@b/k", "s3://...@b/k"),
        ("az://c/k?SECRET", "az://c/k?..."),
        ("abfss://c@acc.dfs.core.windows.net/k", "abfss://c@acc.dfs.core.windows.net/k"),
        ("https://h/a@b", "https://h/a@b"),
        ("https://SECRET@", "https://...@"),
        ("ro,fsname=https://u:SECRET@h/x?SECRET,ro", "ro,fsname=https://...@h/x?..."),
        ("endpoint=http://u:SECRET@h", "endpoint=http://...@h"),
        ("https://h/?", "https://h/?"),
        ("/x/a@b?c", "/x/a@b?c"),
        ("htps://u:SECRET@h/p?SECRET", "htps://...@h/p?..."),
        ("https:/u:SECRET@h/p?SECRET", "https:/...@h/p?..."),
        ("ro,fsname=htps:///u:SECRET@h/p?SECRET", "ro,fsname=htps:///...@h/p?..."),
        ("log-file=ab:/x,fsname=https://u:SECRET@h/p?SECRET", "log-file=ab:/x,fsname=https://...@h/p?..."),
        ("a:/x?y", "a:/x?y"),
        ("/a/bc:/x@y?z", "/a/bc:/x@y?z"),
        ("", ""),
    ] {
        let found = without_secrets(text.as_ref());
        assert_eq!(found, OsStr::new(shown), "{text}");
        assert!(!found.to_str().unwrap().contains("SECRET"), "{text}");
        if let Some(Ok(address)) = Address::parse(text) {
            assert!(!address.to_string().contains("SECRET"), "{text}");
        }
    }
    assert_eq!(without_secrets(OsStr::from_bytes(b"https://\xff@h/\xff?\xff")), OsStr::from_bytes(b"https://...@h/\xff?..."));
}

#[test]
fn what_a_query_asks_for_is_told_apart_and_signatures_are_not() {
    let asked = |query: &str| Address::parse(&format!("https://h/p{query}")).unwrap().unwrap().asked_for();
    for none in [
        "",
        "?X-Amz-Signature=SECRET&x-amz-date=1",
        "?X-Goog-Signature=SECRET",
        "?AWSAccessKeyId=a&Expires=1&Signature=SECRET",
        "?sv=1&sr=b&se=2&sp=r&sig=SECRET",
    ] {
        assert_eq!(asked(none), "", "{none}");
    }
    let all = ["?id=1", "?id=2", "?id", "?sv=1", "?Expires=1", "?versionId=1&X-Amz-Signature=SECRET", "?"].map(asked);
    for (n, one) in all.iter().enumerate() {
        assert!(one.len() == 32 && !all[..n].contains(one), "{all:?}");
    }
    assert_eq!(asked("?versionId=1&X-Amz-Signature=OTHER"), all[5]);
}
