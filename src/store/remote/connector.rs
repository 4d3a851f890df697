//! The connections of all stores: those of the crate, whose answers are no longer than can be good.
//!
//! Connections to a web server are made here, with the crate that it uses, as it has no way to say what a redirect may tell.
//!
//! The crate takes the body of an answer that tells of an error, and that of a listing, into memory as they come. Here the first is cut
//! off, and the second is an error when it gets too long. One key that the crate cannot read would spoil a whole listing: such keys are left
//! out of it. And it throws away when the store answered, which is kept here.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use futures_util::TryStreamExt;
use http::HeaderMap;
use http::header::DATE;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use reqwest::redirect::Policy;
use url::Url;

/// Bytes that are read of an answer that tells of an error.
const MOST_OF_ERROR: usize = 64 << 10;
/// Bytes of a listing: a thousand names take a twentieth of it.
const MOST_OF_LISTING: usize = 16 << 20;

/// When a store says that it answered, by its own clock: the one that objects have their times from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerTime(pub SystemTime);

/// How often a server may redirect one request.
const MOST_REDIRECTS: usize = 5;

/// What is put behind an answer that refuses a request which went unsigned though nobody asked for that.
pub const UNSIGNED: &str = "<!-- unsigned -->";

/// Makes connections.
#[derive(Debug, Default)]
pub struct Connector {
    inner: ReqwestConnector,
    unsigned: bool,
    web: Option<reqwest::Client>,
}

impl Connector {
    /// To a web server. What it is sent may be secret, so it is not told to where the server redirects: no URL as referer, and no headers to
    /// another host.
    ///
    /// # Errors
    /// Certificates of the system that cannot be read.
    pub fn to_web(headers: HeaderMap, without_tls: bool, silence: Duration, connections: usize) -> Result<Self, String> {
        let free = headers.is_empty();
        let redirect = Policy::custom(move |attempt| {
            let origin = |url: &Url| (url.scheme().to_owned(), url.host_str().map(str::to_owned), url.port_or_known_default());
            let same = attempt.previous().first().is_some_and(|first| origin(first) == origin(attempt.url()));
            match () {
                () if attempt.previous().len() > MOST_REDIRECTS => attempt.error("it redirects too often"),
                () if same || free => attempt.follow(),
                () => attempt.error("it redirects to another host, which is not to get user info or headers"),
            }
        });
        let client = reqwest::Client::builder()
            .user_agent(concat!("b2fuse/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .redirect(redirect)
            .referer(false)
            .https_only(!without_tls)
            .http1_only()
            .connect_timeout(silence.min(Duration::from_secs(5)))
            .read_timeout(silence)
            .pool_max_idle_per_host(connections)
            .build();
        let client = client.map_err(|error| format!("connections cannot be made: {}", error.without_url()))?;
        Ok(Connector { web: Some(client), ..Connector::default() })
    }

    /// With `unsigned`, requests go unsigned as nothing is found to sign them with.
    pub fn new(unsigned: bool) -> Self {
        Connector { unsigned, ..Connector::default() }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = match &self.web {
            Some(client) => HttpClient::new(client.clone()),
            None => self.inner.connect(options)?,
        };
        Ok(HttpClient::new(Bounded { inner, unsigned: self.unsigned }))
    }
}

#[derive(Debug)]
struct Bounded {
    inner: HttpClient,
    unsigned: bool,
}

impl HttpService for Bounded {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let lists = is_listing(request.uri().query().unwrap_or_default());
            let (mut parts, body) = self.inner.execute(request).await?.into_parts();
            let date = parts.headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
            if let Some(date) = date {
                parts.extensions.insert(ServerTime(date));
            }
            let body = match () {
                () if !parts.status.is_success() => {
                    let (mut bytes, _) = beginning(body, MOST_OF_ERROR).await?;
                    if self.unsigned {
                        bytes.extend_from_slice(UNSIGNED.as_bytes());
                    }
                    bytes.into()
                }
                () if lists => match beginning(body, MOST_OF_LISTING).await? {
                    (bytes, true) => super::listed::readable(bytes).into(),
                    (_, false) => {
                        let error = io::Error::other(format!("the listing has more than {MOST_OF_LISTING} bytes"));
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
async fn beginning(body: HttpResponseBody, most: usize) -> Result<(Vec<u8>, bool), HttpError> {
    let mut stream = body.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(part) = stream.try_next().await? {
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
