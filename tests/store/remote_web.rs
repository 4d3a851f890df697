//! Hostile and odd servers: what speaks to them is what speaks to real ones, and they are scripts on loopback.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use b2fuse::store::remote::{Access, Address, Client, Listed};
use object_store::ObjectStoreExt;
use parking_lot::Mutex;

/// A request, as it came.
#[derive(Debug, Clone)]
struct Request {
    method: String,
    target: String,
    headers: HashMap<String, String>,
}

impl Request {
    fn read(stream: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = HashMap::new();
        loop {
            line.clear();
            stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        Some(Request { method, target, headers })
    }

    /// The range that is asked for.
    fn range(&self) -> (u64, u64) {
        let (first, last) = self.headers["range"].strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        (first.parse().unwrap(), last.parse().unwrap())
    }
}

/// A server on loopback. It ends with the test program.
struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers each request by what writes the answer; then the connection ends.
    fn start(answer: impl Fn(usize, &Request, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut stream = BufReader::new(stream);
                    let Some(request) = Request::read(&mut stream) else { return };
                    let number = {
                        let mut seen = seen.lock();
                        seen.push(request.clone());
                        seen.len() - 1
                    };
                    answer(number, &request, &mut stream.into_inner());
                });
            }
        });
        Server { port, requests }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().clone()
    }
}

/// Writes an answer of that status, with its length.
fn answer(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

const TIMEOUT: Duration = Duration::from_secs(3);

fn client_with(url: &str, access: Access) -> Arc<Client> {
    let address = Address::parse(url).unwrap().unwrap();
    let opened = access.open(&address).unwrap();
    match address.is_http() {
        true => Client::of_file(opened.store, 4, TIMEOUT).unwrap(),
        false => Client::new(opened.store, opened.key, 4, TIMEOUT).unwrap(),
    }
}

fn client(url: &str) -> Arc<Client> {
    client_with(url, Access { timeout: TIMEOUT, ..Access::default() })
}

#[test]
fn a_body_without_end_is_cut_off() {
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let server = Server::start(move |_, request, stream| {
        let (first, last) = request.range();
        let headers = format!("ETag: \"a\"\r\nContent-Range: bytes {first}-{last}/100000\r\nContent-Length: 99999999999");
        let _ = stream.write_all(format!("HTTP/1.1 206 Partial\r\n{headers}\r\n\r\n").as_bytes());
        let block = vec![7; 1 << 16];
        while stream.write_all(&block).is_ok() {
            count.fetch_add(1 << 16, SeqCst);
        }
    });
    let error = client(&server.url("x")).read("", Some(0..1000), None).unwrap_err();
    assert!(error.to_string().contains("expected 1000"), "{error}");
    assert!(sent.load(SeqCst) < 32 << 20, "{sent:?}");
}

#[test]
fn a_content_range_that_cannot_be_is_an_error() {
    for range in [
        "bytes 0-18446744073709551615/18446744073709551615",
        "bytes 0-99/*",
        "bytes 1-100/1000",
        "bytes 0-98/1000",
        "bytes 0-100/1000",
        "bytes 99-0/1000",
        "bytes 0-99/50",
        "bytes -1-99/1000",
        "0-99/1000",
    ] {
        let server = Server::start(move |_, _, stream| {
            answer(stream, "206 Partial", &format!("ETag: \"a\"\r\nContent-Range: {range}\r\n"), &[1; 100]);
        });
        let error = client(&server.url("x")).read("", Some(0..100), None).unwrap_err();
        assert!(!error.to_string().contains("dropped"), "{range}: a bug, not an error: {error}");
    }
}

#[test]
fn a_whole_object_is_no_part_of_one() {
    let server = Server::start(|_, _, stream| answer(stream, "200 OK", "ETag: \"a\"\r\n", &[1; 100]));
    let error = client(&server.url("x")).read("", Some(0..100), None).unwrap_err();
    assert!(error.to_string().contains("range requests"), "{error}");
}

/// A server whose object is another one from the second request on, and whose first answer ends too early.
fn exchanged_while_it_is_sent(tag: &'static str) -> Server {
    Server::start(move |number, request, stream| {
        let (first, last) = request.range();
        let (byte, day) = if number == 0 { (b'a', "Mon, 01") } else { (b'b', "Tue, 02") };
        let headers = format!(
            "{tag}Last-Modified: {day} Jun 2026 00:00:00 GMT\r\nContent-Range: bytes {first}-{last}/1000\r\nConnection: close\r\n"
        );
        let len = last - first + 1;
        let head = format!("HTTP/1.1 206 Partial\r\n{headers}Content-Length: {len}\r\n\r\n");
        let sent = if number == 0 { len / 2 } else { len };
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![byte; sent as usize]));
    })
}

#[test]
fn a_body_is_never_finished_with_bytes_of_another_state() {
    for tag in ["ETag: W/\"same\"\r\n", ""] {
        let server = exchanged_while_it_is_sent(tag);
        let got = client(&server.url("x")).read("", Some(0..1000), None).unwrap();
        assert!(got.bytes == [b'b'; 1000], "{tag}: {:?}", got.bytes);
    }
}

#[test]
fn a_body_that_ends_too_early_is_asked_for_again() {
    for tag in ["ETag: W/\"same\"\r\n", "", "ETag: \"same\"\r\n"] {
        let server = Server::start(move |number, request, stream| {
            let (first, last) = request.range();
            let headers = format!(
                "{tag}Last-Modified: Mon, 01 Jun 2026 00:00:00 GMT\r\nContent-Range: bytes {first}-{last}/1000\r\nConnection: close\r\n"
            );
            let len = last - first + 1;
            let head = format!("HTTP/1.1 206 Partial\r\n{headers}Content-Length: {len}\r\n\r\n");
            let sent = if number == 0 { len / 2 } else { len };
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b'a'; sent as usize]));
        });
        let got = client(&server.url("x")).read("", Some(0..1000), None).unwrap_or_else(|error| panic!("{tag}: {error}"));
        assert!(got.bytes == [b'a'; 1000], "{tag}");
    }
}

#[test]
fn what_is_encoded_on_its_way_is_an_error() {
    for encoding in ["gzip", "br", "deflate"] {
        let server = Server::start(move |_, request, stream| {
            assert_eq!(request.headers.get("accept-encoding").map(String::as_str), Some("identity"));
            let (first, last) = request.range();
            let headers = format!("ETag: \"a\"\r\nContent-Encoding: {encoding}\r\nContent-Range: bytes {first}-{last}/1000\r\n");
            answer(stream, "206 Partial", &headers, &[1; 100]);
        });
        let error = client(&server.url("x")).read("", Some(0..100), None).unwrap_err();
        assert!(error.to_string().contains(encoding), "{error}");
        assert!(server.requests().iter().all(|request| request.headers["accept-encoding"] == "identity"));
    }
}

/// Where a server redirects to, and what it gets.
fn other_host() -> Server {
    Server::start(|_, request, stream| {
        let (first, last) = request.range();
        let headers = format!(
            "ETag: \"a\"\r\nLast-Modified: Mon, 01 Jun 2026 00:00:00 GMT\r\nContent-Range: bytes {first}-{last}/1000\r\n"
        );
        answer(stream, "206 Partial", &headers, &vec![1; (last - first + 1) as usize]);
    })
}

#[test]
fn a_redirect_tells_another_host_nothing() {
    let other = other_host();
    let port = other.port;
    let server = Server::start(move |_, _, stream| {
        // Another name is another host.
        answer(stream, "307 Temporary", &format!("Location: http://localhost:{port}/stolen\r\n"), b"");
    });
    // Without secrets of headers it is followed, and no URL is told.
    let plain = client(&server.url("x?token=SECRET"));
    assert_eq!(plain.read("", Some(0..100), None).unwrap().bytes.len(), 100);
    assert!(other.requests().iter().all(|request| !format!("{request:?}").contains("SECRET")));
    let asked = other.requests().len();
    let with_user = format!("http://me:SECRET@127.0.0.1:{}/x", server.port);
    let error = client(&with_user).read("", Some(0..100), None).unwrap_err();
    assert!(error.to_string().contains("another host"), "{error}");
    // Object stores redirect nowhere but within themselves: their requests are signed, or have tokens in their URLs.
    let access = Access { endpoint: Some(server.url("")), anonymous: true, timeout: TIMEOUT, ..Access::default() };
    let error = client_with("s3://bucket/key", access).read("", Some(0..100), None).unwrap_err();
    assert!(error.to_string().contains("another host"), "{error}");
    assert_eq!(other.requests().len(), asked);
}

#[test]
fn a_redirect_within_a_host_is_followed() {
    let server = Server::start(move |_, request, stream| {
        if !request.target.ends_with("/new") {
            return answer(stream, "307 Temporary", "Location: /new\r\n", b"");
        }
        let (first, last) = request.range();
        let headers = format!(
            "ETag: \"a\"\r\nLast-Modified: Mon, 01 Jun 2026 00:00:00 GMT\r\nContent-Range: bytes {first}-{last}/1000\r\n"
        );
        answer(stream, "206 Partial", &headers, &vec![1; (last - first + 1) as usize]);
    });
    assert_eq!(client(&server.url("x")).read("", Some(0..100), None).unwrap().bytes.len(), 100);
    let access = Access { endpoint: Some(server.url("")), anonymous: true, timeout: TIMEOUT, ..Access::default() };
    assert_eq!(client_with("s3://bucket/key", access).read("", Some(0..100), None).unwrap().bytes.len(), 100);
}

#[test]
fn a_listing_without_end_is_an_error() {
    let pages = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&pages);
    let server = Server::start(move |_, request, stream| {
        assert_eq!(request.method, "GET");
        let page = counted.fetch_add(1, SeqCst);
        let keys: String = (0..1000)
            .map(|n| {
                format!(
                    "<Contents><Key>key/{:08X}.chunk</Key><LastModified>2026-06-01T00:00:00.000Z</LastModified><Size>1</Size><ETag>\"a\"</ETag></Contents>",
                    (page * 1000 + n) % 0x7fff_ffff
                )
            })
            .collect();
        let body = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>{page}</NextContinuationToken>{keys}</ListBucketResult>"
        );
        answer(stream, "200 OK", "", body.as_bytes());
    });
    let access = Access { endpoint: Some(server.url("")), anonymous: true, timeout: TIMEOUT, ..Access::default() };
    let client = client_with("s3://bucket/key", access);
    let error = client.list(vec![None..None], 10_000, |listed: Listed| Some(listed.name)).unwrap_err();
    assert!(error.to_string().contains("more than 10000 names"), "{error}");
    assert!(pages.load(SeqCst) <= 12, "{pages:?}");
}

/// A byte at a time, each long before the server counts as silent.
fn trickle(stream: &mut TcpStream, bytes: &[u8]) {
    for byte in bytes {
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What `work` returns, which must end soon after the time that a request has.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    result.recv_timeout(20 * TIMEOUT).expect("it ends in time")
}

#[test]
fn a_body_that_comes_a_byte_at_a_time_has_an_end() {
    // With a tag that lets the crate continue the body, and with one after which the object is asked for anew.
    for tag in ["\"a\"", "W/\"a\""] {
        let server = Server::start(move |_, request, stream| {
            let (first, last) = request.range();
            let head = format!(
                "HTTP/1.1 206 Partial\r\nETag: {tag}\r\nContent-Range: bytes {first}-{last}/9000\r\nContent-Length: 9000\r\n\r\n"
            );
            let _ = stream.write_all(head.as_bytes());
            trickle(stream, &[0; 9000]);
        });
        let client = client(&server.url("x"));
        let error = in_time(move || client.read("", Some(0..9000), None).unwrap_err());
        assert!(error.to_string().contains("expected at least 256 per second"), "{error}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn an_answer_to_a_put_that_comes_a_byte_at_a_time_has_an_end() {
    let server = Server::start(|_, _, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 9000\r\n\r\n");
        trickle(stream, &[0; 9000]);
    });
    let access = Access { endpoint: Some(server.url("")), anonymous: true, timeout: TIMEOUT, ..Access::default() };
    let client = client_with("s3://bucket/x", access);
    let asked = Arc::clone(&client);
    let put = move || {
        client.wait(async move {
            let put = asked.store().put(&"x".into(), "y".into()).await;
            Ok(put.map(drop).map_err(|error| error.to_string()))
        })
    };
    let error = in_time(put).unwrap().unwrap_err();
    assert!(!error.is_empty());
}

/// A port of loopback on which nobody listens.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_first_connection_that_is_refused_is_not_tried_again() {
    let endpoint = format!("http://127.0.0.1:{}", free_port());
    let long = Duration::from_secs(600);
    let access = Access { endpoint: Some(endpoint.clone()), anonymous: true, timeout: long, ..Access::default() };
    for (url, access) in [
        (format!("{endpoint}/x"), Access { timeout: long, ..Access::default() }),
        // No name server is asked: a part of a name has 63 characters at most.
        (format!("http://{}/x", "x".repeat(64)), Access { timeout: long, ..Access::default() }),
        ("s3://bucket/x".to_owned(), access),
    ] {
        let client = client_with(&url, access);
        let error = in_time(move || client.read("", Some(0..100), None).unwrap_err());
        assert!(error.to_string().contains("the server cannot be reached"), "{url}: {error}");
    }
}

#[test]
fn a_connection_that_is_refused_later_is_tried_again() {
    let port = free_port();
    let serve = move |times: usize| {
        std::thread::spawn(move || {
            let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
            for _ in 0..times {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                let request = Request::read(&mut stream).unwrap();
                let (first, last) = request.range();
                let headers = format!("ETag: \"a\"\r\nContent-Range: bytes {first}-{last}/1000\r\n");
                answer(&mut stream.into_inner(), "206 Partial", &headers, &[1; 100]);
            }
        })
    };
    let first = serve(1);
    let client =
        client_with(&format!("http://127.0.0.1:{port}/x"), Access { timeout: Duration::from_secs(30), ..Access::default() });
    // The server may not listen yet.
    let deadline = std::time::Instant::now() + 10 * TIMEOUT;
    while client.read("", Some(0..100), None).is_err() {
        assert!(std::time::Instant::now() < deadline);
    }
    first.join().unwrap();
    let asked = client.asked().gets.load(SeqCst);
    let reader = std::thread::spawn({
        let client = Arc::clone(&client);
        move || client.read("", Some(0..100), None)
    });
    while client.asked().gets.load(SeqCst) == asked {
        std::thread::yield_now();
    }
    let second = serve(1);
    assert_eq!(reader.join().unwrap().unwrap().bytes.len(), 100);
    second.join().unwrap();
}
