//! The connections of all stores. Bodies of responses are bounded.
//!
//! They are made here, with the crate that the stores' own uses, as that has no way to say what a redirect may tell: it would send headers
//! with keys, and the URL with its token, to whatever host an answer names.
//!
//! The crate takes the body of an answer that tells of an error, and that of a listing, into memory as they come. Here the first is cut
//! off, and the second is an error when it gets too long. Both have an end in time, also if they come a byte at a time. One key that the crate cannot read would spoil a whole listing: such keys are left
//! out of it. And it throws away when the store answered, which is kept here.
//!
//! A body that ends too early it goes on with where the object still has the same ETag. A weak one does not say that the bytes are the
//! same, so it is kept from the crate, as [`WeakTag`].

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use futures_util::TryStreamExt;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_RANGE, DATE, ETAG};
use http::{HeaderMap, HeaderValue, Method};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, NoProxy, Proxy};
use url::Url;

use super::pace::time_left;

/// Bytes that are read of an answer that tells of an error.
const MOST_OF_ERROR: usize = 64 << 10;
/// Bytes of a listing, and of what a store says to a request that changes something: a thousand names take a twentieth of it.
const MOST_OF_LISTING: usize = 16 << 20;

/// When a store says that it answered, by its own clock: the one that objects have their times from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerTime(pub SystemTime);

/// An ETag that does not say that bytes are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeakTag(pub String);

/// How often a server may redirect one request.
const MOST_REDIRECTS: usize = 5;

/// What is put behind an answer that refuses a request which went unsigned though nobody asked for that.
pub const UNSIGNED: &str = "<!-- unsigned -->";

/// Makes connections.
#[derive(Debug)]
pub struct Connector {
    to: To,
    unsigned: bool,
    /// How long a server may be silent.
    silence: Duration,
}

#[derive(Debug)]
enum To {
    Web(reqwest::Client),
    Store { connections: usize },
}

impl Connector {
    /// To a web server. What it is sent may be secret, so it is not told to where the server redirects: no URL as referer, and no headers to
    /// another host.
    ///
    /// # Errors
    /// Certificates of the system that cannot be read.
    pub fn to_web(headers: HeaderMap, without_tls: bool, silence: Duration, connections: usize) -> Result<Self, String> {
        let builder = builder(headers, Times { connect: silence.min(CONNECT), silence }, connections);
        let client = builder.https_only(!without_tls).http1_only().build();
        let client = client.map_err(|error| format!("connections cannot be made: {}", error.without_url()))?;
        Ok(Connector { to: To::Web(client), unsigned: false, silence })
    }

    /// To an object store. With `unsigned`, requests go unsigned as nothing is found to sign them with.
    pub fn to_store(unsigned: bool, silence: Duration, connections: usize) -> Self {
        Connector { to: To::Store { connections }, unsigned, silence }
    }
}

/// How long connecting may take, at most.
const CONNECT: Duration = Duration::from_secs(5);
/// The same where the crate asks a machine who it is: mostly, nobody is there.
const CONNECT_SOON: Duration = Duration::from_secs(1);

struct Times {
    connect: Duration,
    silence: Duration,
}

/// Connections that send these headers, and tell another host nothing that is secret.
fn builder(headers: HeaderMap, times: Times, connections: usize) -> ClientBuilder {
    choose_encryption();
    let free = headers.is_empty();
    // Bytes that are packed on their way are none of the object.
    let headers = [(ACCEPT_ENCODING, HeaderValue::from_static("identity"))].into_iter().chain(named(headers)).collect();
    reqwest::Client::builder()
        .user_agent(concat!("b2fuse/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .redirect(redirects(free))
        .referer(false)
        .connect_timeout(times.connect)
        .read_timeout(times.silence)
        .pool_max_idle_per_host(connections)
}

/// Encryption is ring's: another would take as long to build as all else that is remote.
fn choose_encryption() {
    // An error says that it was chosen before.
    drop(rustls::crypto::ring::default_provider().install_default());
}

/// Of a header with several values, each with its name.
fn named(headers: HeaderMap) -> impl Iterator<Item = (http::HeaderName, HeaderValue)> {
    let mut last = None;
    headers.into_iter().filter_map(move |(name, value)| {
        last = name.or_else(|| last.take());
        Some((last.clone()?, value))
    })
}

/// Within a host; to others if requests are `free` of secrets.
fn redirects(free: bool) -> Policy {
    Policy::custom(move |attempt| {
        let origin = |url: &Url| (url.scheme().to_owned(), url.host_str().map(str::to_owned), url.port_or_known_default());
        let same = attempt.previous().first().is_some_and(|first| origin(first) == origin(attempt.url()));
        match () {
            () if attempt.previous().len() > MOST_REDIRECTS => attempt.error("it redirects too often"),
            () if same || free => attempt.follow(),
            () => attempt.error("it redirects to another host, which must not get the secrets of a request"),
        }
    })
}

/// Connections with the settings of a store.
fn of_store(options: &ClientOptions, silence: Duration, connections: usize) -> reqwest::Result<reqwest::Client> {
    use ClientConfigKey as Setting;
    let value = |key: Setting| options.get_config_value(&key);
    let is = |key: Setting| value(key).is_some_and(|value| value == "true");
    let soon = value(Setting::ConnectTimeout).is_some_and(|time| time == "1s");
    let connect = if soon { CONNECT_SOON } else { CONNECT }.min(silence);
    let mut builder = builder(HeaderMap::new(), Times { connect, silence }, connections).redirect(redirects(false));
    if let Some(agent) = value(Setting::UserAgent) {
        builder = builder.user_agent(agent);
    }
    if let Some(proxy) = value(Setting::ProxyUrl) {
        if let Some(certificate) = value(Setting::ProxyCaCertificate) {
            builder = builder.tls_certs_merge([reqwest::Certificate::from_pem(certificate.as_bytes())?]);
        }
        let excluded = value(Setting::ProxyExcludes).and_then(|hosts| NoProxy::from_string(&hosts));
        builder = builder.proxy(Proxy::all(proxy)?.no_proxy(excluded));
    }
    if is(Setting::NoSystemCertificates) {
        builder = builder.tls_certs_only([]);
    }
    if is(Setting::Http1Only) {
        builder = builder.http1_only();
    }
    if is(Setting::Http2Only) {
        builder = builder.http2_prior_knowledge();
    }
    builder.danger_accept_invalid_certs(is(Setting::AllowInvalidCertificates)).https_only(!is(Setting::AllowHttp)).build()
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = match &self.to {
            To::Web(client) => client.clone(),
            To::Store { connections } => of_store(options, self.silence, *connections)
                .map_err(|error| object_store::Error::Generic { store: "HTTP client", source: Box::new(error.without_url()) })?,
        };
        let Connector { unsigned, silence, .. } = *self;
        Ok(HttpClient::new(Bounded { inner: HttpClient::new(client), unsigned, silence, is_reached: AtomicBool::new(false) }))
    }
}

#[derive(Debug)]
struct Bounded {
    inner: HttpClient,
    unsigned: bool,
    silence: Duration,
    /// The server has answered once.
    is_reached: AtomicBool,
}

/// A first connection that nobody takes: the address is wrong, or the server is down. It is not tried again, where the crate would do so for
/// most of the time that a request has. Once the server has answered, it may come back, and requests are retried.
#[derive(Debug)]
pub struct Unreachable(pub HttpError);

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Unreachable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

/// Whether a connection was refused, or its host has no address.
fn is_nobody_there(error: &HttpError) -> bool {
    let mut causes = std::iter::successors(error.source(), |error: &&(dyn Error + 'static)| (**error).source());
    let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    // The type of an error of the resolver is not public.
    let is_nameless = |text: String| text.starts_with("dns error") || text.starts_with("failed to lookup address");
    error.kind() == HttpErrorKind::Connect
        && causes.any(|error| error.downcast_ref().is_some_and(is_refused) || is_nameless(error.to_string()))
}

impl HttpService for Bounded {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let mut request = request;
            // Of who has no credentials, and goes unsigned.
            if request.headers().get(AUTHORIZATION).is_some_and(|value| value.as_bytes().trim_ascii() == b"Bearer") {
                request.headers_mut().remove(AUTHORIZATION);
            }
            let lists = is_listing(request.uri().query().unwrap_or_default());
            let is_short = lists || *request.method() != Method::GET;
            let response = self.inner.execute(request).await.map_err(|error| match is_nobody_there(&error) {
                true if !self.is_reached.load(Relaxed) => HttpError::new(HttpErrorKind::Unknown, Unreachable(error)),
                _ => error,
            })?;
            self.is_reached.store(true, Relaxed);
            let (mut parts, body) = response.into_parts();
            let date = parts.headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
            if let Some(date) = date {
                parts.extensions.insert(ServerTime(date));
            }
            let weak = parts.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).filter(|tag| tag.starts_with("W/"));
            if let Some(weak) = weak.map(|tag| WeakTag(tag.to_owned())) {
                parts.extensions.insert(weak);
                parts.headers.remove(ETAG);
            }
            // The crate counts from its end on.
            let range = parts.headers.get(CONTENT_RANGE).and_then(|range| range.to_str().ok()).unwrap_or_default();
            if range.contains(&format!("-{}/", u64::MAX)) {
                return Err(HttpError::new(HttpErrorKind::Decode, io::Error::other("the range that was sent has no end")));
            }
            let body = match () {
                () if !parts.status.is_success() => {
                    let (mut bytes, _) = beginning(body, MOST_OF_ERROR, self.silence).await?;
                    if self.unsigned {
                        bytes.extend_from_slice(UNSIGNED.as_bytes());
                    }
                    bytes.into()
                }
                () if is_short => match beginning(body, MOST_OF_LISTING, self.silence).await? {
                    (bytes, true) if lists => super::listed::readable(bytes).into(),
                    (bytes, true) => bytes.into(),
                    (_, false) => {
                        let error = io::Error::other(format!(
                            "the {} has more than {MOST_OF_LISTING} bytes",
                            if lists { "listing" } else { "answer" }
                        ));
                        return Err(HttpError::new(HttpErrorKind::Decode, error));
                    }
                },
                () => body,
            };
            Ok(HttpResponse::from_parts(parts, body))
        })
    }
}

/// As S3 and Google's store have it, and as Azure's.
fn is_listing(query: &str) -> bool {
    query.split('&').any(|pair| pair == "list-type=2" || pair == "comp=list")
}

/// The beginning of a body, and whether that is all of it.
async fn beginning(body: HttpResponseBody, most: usize, silence: Duration) -> Result<(Vec<u8>, bool), HttpError> {
    let mut stream = body.bytes_stream();
    let (mut bytes, began) = (Vec::new(), Instant::now());
    let slow = |_| HttpError::new(HttpErrorKind::Timeout, io::Error::from(io::ErrorKind::TimedOut));
    while let Some(part) =
        tokio::time::timeout(time_left(silence, began, bytes.len()), stream.try_next()).await.map_err(slow)??
    {
        let room = most - bytes.len();
        match part.get(..room) {
            Some(fits) if part.len() > room => {
                bytes.extend_from_slice(fits);
                return Ok((bytes, false));
            }
            _ => bytes.extend_from_slice(&part),
        }
    }
    Ok((bytes, true))
}
