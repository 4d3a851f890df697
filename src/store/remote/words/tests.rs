use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use object_store::http::HttpBuilder;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use super::*;
use crate::store::remote::connector::Connector;
use crate::store::remote::{Access, Address};

/// A server on this machine that gives each connection the next answer, and tells what it was asked.
fn server(answers: Vec<String>) -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (say, heard) = channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut client, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if client.read(&mut byte).unwrap() == 0 {
                    break;
                }
                asked.push(byte[0]);
            }
            let _ = say.send(String::from_utf8(asked).unwrap());
            let _ = client.write_all(answer.as_bytes());
        }
    });
    (port, heard)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
}

fn access() -> Access {
    Access { timeout: Duration::from_millis(300), anonymous: true, ..Access::default() }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// What a GET of the first 10 bytes of a URL ends with.
fn get(access: &Access, url: &str) -> Result<Vec<u8>, Error> {
    let opened = access.open(&Address::parse(url).unwrap().unwrap()).unwrap();
    run(async {
        let options = GetOptions { range: Some(GetRange::Bounded(0..10)), ..GetOptions::default() };
        Ok(opened.store.get_opts(&opened.key, options).await?.bytes().await?.to_vec())
    })
}

/// The error of a GET, in words, and its errno. None of them shows a secret.
fn words(status: &str, headers: &str, body: &str) -> (String, i32) {
    let (port, _heard) = server(vec![answer(status, headers, body); 999]);
    let error = get(&access(), &format!("http://me:SECRET@127.0.0.1:{port}/a/b.b2nd?X-Amz-Signature=SECRET")).unwrap_err();
    let words = in_words(&error);
    assert!(error.to_string().contains("SECRET"), "what is left out here must be there: {error}");
    for part in ["SECRET", "://", "Signature"] {
        assert!(!words.contains(part), "{words}");
    }
    assert!(words.len() < 2 * MOST && words.lines().count() == 1, "{words}");
    (words, errno(&error))
}

fn xml(code: &str, message: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>{message}</Message><AWSAccessKeyId>SECRET</AWSAccessKeyId></Error>"
    )
}

#[test]
fn answers() {
    let long = xml("Odd", &"x".repeat(9999));
    for (status, body, expected, number) in [
        ("404 Not Found", xml("NoSuchKey", "no"), "no such object", libc::ENOENT),
        ("404 Not Found", xml("NoSuchBucket", "no"), "no such bucket", libc::ENOENT),
        ("404 Not Found", String::new(), "no such object", libc::ENOENT),
        ("412 Precondition Failed", String::new(), "the object has changed meanwhile", libc::ESTALE),
        ("403 Forbidden", xml("AccessDenied", "Access Denied"), "permission denied: AccessDenied: Access Denied", libc::EACCES),
        ("403 Forbidden", "<html>SECRET</html>".into(), "permission denied", libc::EACCES),
        ("401 Unauthorized", "SECRET".into(), "the credentials are not accepted", libc::EACCES),
        ("400 Bad Request", "SECRET".into(), "the server answers 400 Bad Request", libc::EIO),
        (
            "400 Bad Request",
            xml("Bad", "see https://x/?SECRET or\u{1b}[2J a=SECRET&amp;b"),
            "the server answers 400 Bad Request: Bad: see ... or\\u{1b}[2J ...",
            libc::EIO,
        ),
        ("400 Bad Request", long, &format!("the server answers 400 Bad Request: Odd: {}...", "x".repeat(MOST - 5)), libc::EIO),
        ("416 Range Not Satisfiable", String::new(), "the server answers 416 Range Not Satisfiable", libc::EIO),
    ] {
        assert_eq!(words(status, "", &body), (expected.to_owned(), number), "{status} {body}");
    }
}

#[test]
fn answers_that_are_tried_again() {
    let (said, number) = words("503 Service Unavailable", "", &xml("SlowDown", "Please reduce your request rate."));
    assert_eq!(
        (said.as_str(), number),
        ("the server answers 503 Service Unavailable: SlowDown: Please reduce your request rate.", libc::EIO)
    );
    let good = answer("206 Partial Content", "Content-Range: bytes 0-9/20\r\nETag: \"x\"\r\n", "0123456789");
    let (port, heard) = server(vec![answer("500 No", "", ""), answer("503 No", "", ""), good]);
    let patient = Access { timeout: Duration::from_secs(30), ..access() };
    assert_eq!(get(&patient, &format!("http://127.0.0.1:{port}/x")).unwrap(), b"0123456789");
    assert_eq!(heard.iter().take(3).count(), 3);
}

#[test]
fn a_server_without_ranges_is_told() {
    let (port, _heard) = server(vec![answer("200 OK", "", "0123456789abc")]);
    let error = get(&access(), &format!("http://127.0.0.1:{port}/x?SECRET")).unwrap_err();
    assert_eq!(
        (in_words(&error).as_str(), errno(&error)),
        ("the server does not support range requests; expected one that does", libc::EIO)
    );
}

#[test]
fn redirects_of_a_bucket_name_its_region() {
    let (port, _heard) = server(vec![answer("301 Moved Permanently", "", &xml("PermanentRedirect", "elsewhere"))]);
    let access = Access { endpoint: Some(format!("http://127.0.0.1:{port}")), ..access() };
    let error = get(&access, "s3://bucket/key").unwrap_err();
    assert_eq!(in_words(&error), "the bucket is in another region; expected its region in -o region=");
}

#[test]
fn who_is_refused_hears_that_nothing_was_signed() {
    let refused = |unsigned| {
        let (port, _heard) = server(vec![answer("403 Forbidden", "", &xml("AccessDenied", "Access Denied"))]);
        let options = object_store::ClientOptions::new().with_allow_http(true);
        let builder = HttpBuilder::new().with_url(format!("http://127.0.0.1:{port}/x")).with_client_options(options);
        let store = builder.with_http_connector(Connector::to_store(unsigned, Duration::from_secs(9), 4)).build().unwrap();
        in_words(&run(store.get(&object_store::path::Path::default())).unwrap_err())
    };
    let said = "permission denied: AccessDenied: Access Denied";
    assert_eq!(refused(false), said);
    assert_eq!(refused(true), format!("{said} (no credentials are found, so the request was not signed)"));
}

#[test]
fn connections() {
    // Nobody listens there any more.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = get(&access(), &format!("http://me:SECRET@127.0.0.1:{port}/x?SECRET")).unwrap_err();
    let said = in_words(&refused);
    assert!(said.starts_with("the server cannot be reached: Connection refused"), "{said}");
    // It takes the connection, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let late = get(&access(), &format!("http://127.0.0.1:{port}/x?SECRET")).unwrap_err();
    assert_eq!(in_words(&late), "the server did not respond in time");
    // It ends the connection at once; and within a body.
    let (port, _heard) = server(vec![String::new(); 99]);
    let said = in_words(&get(&access(), &format!("http://127.0.0.1:{port}/x?SECRET")).unwrap_err());
    assert!(said.starts_with("the connection ended: "), "{said}");
    let cut = "HTTP/1.1 206 OK\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/20\r\n\r\n01234".to_owned();
    let (port, _heard) = server(vec![cut; 99]);
    let said = in_words(&get(&access(), &format!("http://127.0.0.1:{port}/x?SECRET")).unwrap_err());
    assert!(said.starts_with("the connection ended: ") || said.starts_with("the response cannot be read: "), "{said}");
    // It speaks another language.
    let (port, _heard) = server(vec!["SSH-2.0-x\r\n".to_owned(); 99]);
    let said = in_words(&get(&access(), &format!("http://127.0.0.1:{port}/x?SECRET")).unwrap_err());
    assert!(said.starts_with("the response cannot be read: ") || said.starts_with("the connection ended: "), "{said}");
    assert!(!said.contains("SECRET"));
}

#[test]
fn a_signed_url_is_asked_for_as_it_was_given() {
    let good = || answer("206 Partial Content", "Content-Range: bytes 0-9/20\r\n", "0123456789");
    let query = "X-Amz-Credential=AK%2F2026%2Fs3&X-Amz-Signature=0a~b-c_d.e+f&e&f=%7e%41*()!:@/?x";
    let path = "/a%2Fb/c%20d+e~%7E%41;=@:!$&()*,/x.b2nd";
    let (port, heard) = server(vec![good()]);
    assert_eq!(get(&access(), &format!("http://127.0.0.1:{port}{path}?{query}")).unwrap(), b"0123456789");
    let asked = heard.recv().unwrap();
    assert_eq!(asked.lines().next().unwrap(), format!("GET {path}?{query} HTTP/1.1"));
    assert!(asked.lines().any(|line| line.eq_ignore_ascii_case("range: bytes=0-9")), "{asked}");
    assert!(!asked.to_ascii_lowercase().contains("authorization") && !asked.contains("PROPFIND"), "{asked}");
    let (port, heard) = server(vec![good()]);
    let who = Access { anonymous: false, ..access() };
    get(&who, &format!("http://me:pass@127.0.0.1:{port}/x")).unwrap();
    let asked = heard.recv().unwrap().to_ascii_lowercase();
    assert!(asked.contains("authorization: basic bwu6cgfzcw=="), "{asked}");
}

#[test]
fn redirects_tell_no_secrets() {
    let good = answer("206 Partial Content", "Content-Range: bytes 0-9/20\r\n", "0123456789");
    let (other, heard) = server(vec![good.clone()]);
    let moved = |to: String| answer("302 Found", &format!("Location: {to}\r\n"), "");
    let (port, _first) = server(vec![moved(format!("http://127.0.0.1:{other}/y"))]);
    assert_eq!(get(&access(), &format!("http://127.0.0.1:{port}/x?SECRET")).unwrap(), b"0123456789");
    let asked = heard.recv().unwrap();
    assert!(asked.starts_with("GET /y HTTP") && !asked.contains("SECRET"), "{asked}");
    // Who is known to one server is not made known to another.
    let who = Access { anonymous: false, ..access() };
    let (other, heard) = server(vec![good.clone()]);
    let (port, _first) = server(vec![moved(format!("http://127.0.0.1:{other}/y")); 99]);
    let error = get(&who, &format!("http://me:SECRET@127.0.0.1:{port}/x")).unwrap_err();
    assert!(in_words(&error).contains("redirects to another host"), "{}", in_words(&error));
    assert!(heard.try_recv().is_err());
    // On the same server it is.
    let (port, heard) = server(vec![moved("/y".to_owned()), good]);
    assert_eq!(get(&who, &format!("http://me:pass@127.0.0.1:{port}/x?SECRET")).unwrap(), b"0123456789");
    let asked = heard.iter().nth(1).unwrap().to_ascii_lowercase();
    assert!(asked.contains("authorization: basic") && !asked.contains("secret"), "{asked}");
    // And not in circles.
    let (port, _heard) = server(vec![moved("/x".to_owned()); 999]);
    assert!(in_words(&get(&access(), &format!("http://127.0.0.1:{port}/x")).unwrap_err()).contains("redirects too often"));
}

#[test]
fn bodies_of_errors_and_listings_are_bounded() {
    let endless = |status: &str| {
        let body = "<".repeat(1 << 20);
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{}", 1u64 << 50, body.repeat(20))
    };
    let (port, _heard) = server(vec![endless("400 Bad Request")]);
    let error = get(&access(), &format!("http://127.0.0.1:{port}/x")).unwrap_err();
    assert_eq!(in_words(&error), "the server answers 400 Bad Request");
    assert!(error.to_string().len() < 100 << 10);
    let (port, _heard) = server(vec![endless("200 OK")]);
    let access = Access { endpoint: Some(format!("http://127.0.0.1:{port}")), timeout: Duration::from_secs(30), ..access() };
    let opened = access.open(&Address::parse("s3://bucket/key").unwrap().unwrap()).unwrap();
    let error = run(opened.store.list_with_delimiter(Some(&opened.key))).unwrap_err();
    assert!(in_words(&error).contains("the listing has more than"), "{}", in_words(&error));
    let (port, _heard) = server(vec![answer("404 Not Found", "", "")]);
    let access = Access { endpoint: Some(format!("http://127.0.0.1:{port}")), ..access };
    let opened = access.open(&Address::parse("s3://bucket/key").unwrap().unwrap()).unwrap();
    assert!(matches!(run(opened.store.head(&opened.key)), Err(Error::NotFound { .. })));
}
