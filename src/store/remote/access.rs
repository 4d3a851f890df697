//! How a store is reached: the options of a user, what the environment says, and the stores of the crate that are made of both.
//!
//! | store | keys come from |
//! | --- | --- |
//! | S3 | `AWS_*`; a profile of `~/.aws`; a web identity; ECS, EKS; on Amazon's machines, the machine's own role |
//! | Google | `GOOGLE_APPLICATION_CREDENTIALS` and `GOOGLE_*`; gcloud's application default; on Google's machines, their own account |
//! | Azure | `AZURE_*`, `AZURE_STORAGE_*`, a connection string; where Azure gives machines an identity, that |
//! | web | the URL itself; a file of headers |
//!
//! An option counts more than a variable, and a variable more than a file. Where there is nothing to sign with, requests go unsigned:
//! services of the cloud that are not there are not waited for. The log says so (`-v`), and so does the error of a request that is refused. Proxies are those of `HTTP_PROXY`, `HTTPS_PROXY`
//! and `NO_PROXY`; certificates are the system's. A connection without TLS is made only to an endpoint or URL that begins with `http://`.
//!
//! A GET of a web server's object goes to its URL as it was given: the store of the crate for WebDAV is made with the whole URL, query
//! included, and is asked for its root. It puts parts of keys behind the path, of which the root has none, and keeps the query. Requests
//! with headers of a file, or with user info, follow no redirect to another host; no redirect is told the URL.
//!
//! Promises: no error has a secret in it, and nothing here waits for a network.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use http::header::AUTHORIZATION;
use log::debug;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::ClientConfigKey;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider};
use url::Url;

use self::environment::{Environment, Host};
use self::profile::Profile;
use super::address::{Address, Kind};
use super::connector::Connector;
use super::words::in_words;
use crate::format::plain::plain;

mod environment;
mod headers;
mod profile;

/// How often one request is tried at most: what ends it is the time.
const TRIES: usize = 1000;

/// How remote frames are reached and read, as a user says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Where the store is, as `http://HOST:PORT` or `https://HOST`; otherwise the provider's own place.
    pub endpoint: Option<String>,
    /// The region of a bucket.
    pub region: Option<String>,
    /// Requests are not signed.
    pub anonymous: bool,
    /// A file with headers for a web server.
    pub headers: Option<PathBuf>,
    /// How long an answer is waited for, with all that is tried again.
    pub timeout: Duration,
    /// Requests at one time.
    pub connections: usize,
    /// How often others' commits are looked for at most.
    pub refresh: Duration,
    /// A source is read even if nothing tells its states apart.
    pub unsafe_immutable: bool,
}

impl Default for Access {
    fn default() -> Self {
        Access {
            endpoint: None,
            region: None,
            anonymous: false,
            headers: None,
            timeout: Duration::from_secs(30),
            connections: 64,
            refresh: Duration::from_secs(5),
            unsafe_immutable: false,
        }
    }
}

/// A store, and where in it to begin.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The same, where it lists names: not a web server.
    pub pages: Option<Arc<dyn PaginatedListStore>>,
    /// The same, where it takes objects in parts: not a web server.
    pub parts: Option<Arc<dyn MultipartStore>>,
    /// The key of the address in it.
    pub key: Key,
    /// What beside the URL says which object it is: where the store is, and what a query asks for. Without secrets.
    pub origin: String,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("store", &self.store).field("key", &self.key).finish_non_exhaustive()
    }
}

impl Access {
    /// Makes what speaks to an address. Nothing is asked of anybody yet.
    ///
    /// # Errors
    /// Settings that are none, or that are missing, in words.
    pub fn open(&self, address: &Address) -> Result<Opened, String> {
        self.open_in(address, &Environment::of_process())
    }

    fn open_in(&self, address: &Address, environment: &Environment) -> Result<Opened, String> {
        if let Some(endpoint) = &self.endpoint {
            check_endpoint(endpoint)?;
        }
        let key = address.key();
        type Reached = (Arc<dyn ObjectStore>, Option<Arc<dyn PaginatedListStore>>, Option<Arc<dyn MultipartStore>>, String);
        let (store, pages, parts, origin): Reached = match address.kind() {
            Kind::Http => (Arc::new(self.web(address)?), None, None, address.asked_for()),
            kind if self.headers.is_some() => {
                return Err(format!("headers= is for http:// and https://, and this is {kind:?}; expected it without headers="));
            }
            Kind::S3 => {
                let builder = self.amazon(address, environment)?;
                let settings = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::Region];
                let origin = origin(settings, |key| builder.get_config_value(key));
                let store = Arc::new(builder.build().map_err(|error| in_words(&error))?);
                (store.clone(), Some(store.clone()), Some(store), origin)
            }
            Kind::Google => {
                let builder = self.google(address, environment)?;
                let origin = origin([GoogleConfigKey::BaseUrl], |key| builder.get_config_value(key));
                let settings = google_settings(&builder, environment);
                let store = Arc::new(builder.build().map_err(|error| format!("{settings}{}", in_words(&error)))?);
                (store.clone(), Some(store.clone()), Some(store), origin)
            }
            Kind::Azure => {
                let builder = self.azure(address, environment)?;
                let settings = [AzureConfigKey::AccountName, AzureConfigKey::Endpoint, AzureConfigKey::UseEmulator];
                let origin = origin(settings, |key| builder.get_config_value(key));
                let store = Arc::new(builder.build().map_err(|error| in_words(&error))?);
                (store.clone(), Some(store.clone()), Some(store), origin)
            }
        };
        Ok(Opened { store, pages, parts, key, origin })
    }

    fn web(&self, address: &Address) -> Result<object_store::http::HttpStore, String> {
        if self.endpoint.is_some() || self.region.is_some() {
            return Err(
                "endpoint= and region= are for object stores; expected a URL of s3://, gs:// or az://, or neither".to_owned()
            );
        }
        let mut url = address.url().cloned().ok_or("the URL is not one of a web server")?;
        let mut headers = self.headers.as_deref().map(headers::read).transpose()?.unwrap_or_default();
        if !headers.contains_key(AUTHORIZATION) && !self.anonymous {
            headers.extend(basic(&url).map(|value| (AUTHORIZATION, value)));
        }
        // It is sent in the header.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let connector = Connector::to_web(headers, url.scheme() == "http", self.silence(), self.connections)?;
        let builder = HttpBuilder::new().with_url(url).with_retry(self.retries()).with_http_connector(connector);
        builder.build().map_err(|error| in_words(&error))
    }

    fn amazon(&self, address: &Address, environment: &Environment) -> Result<AmazonS3Builder, String> {
        use AmazonS3ConfigKey as Setting;
        let mut builder = AmazonS3Builder::new();
        let mut options = ClientOptions::new();
        for (name, value) in environment.beginning("AWS_") {
            match name.to_ascii_lowercase().parse() {
                Ok(Setting::Client(key)) => options = options.with_config(key, value),
                Ok(key) => builder = builder.with_config(key, value),
                Err(_) => {}
            }
        }
        let profile = Profile::read(environment)?;
        let known = |builder: &AmazonS3Builder, key: Setting| builder.get_config_value(&key).is_some();
        let has_keys = known(&builder, Setting::AccessKeyId) || known(&builder, Setting::SecretAccessKey);
        let anonymous = self.anonymous || builder.get_config_value(&Setting::SkipSignature).is_some_and(|value| value == "true");
        if !has_keys && !anonymous {
            if let Some(how) = profile.elsewhere() {
                return Err(format!(
                    "the keys of the AWS profile come {how}; expected them in the environment (aws configure export-credentials --format env)"
                ));
            }
            for (setting, key) in [
                ("aws_access_key_id", Setting::AccessKeyId),
                ("aws_secret_access_key", Setting::SecretAccessKey),
                ("aws_session_token", Setting::Token),
                ("web_identity_token_file", Setting::WebIdentityTokenFile),
                ("role_arn", Setting::RoleArn),
                ("role_session_name", Setting::RoleSessionName),
            ] {
                // What a token or role of the environment belongs to is there as well.
                if let Some(value) = profile.get(setting).filter(|_| !known(&builder, key)) {
                    builder = builder.with_config(key, value);
                }
            }
        }
        let region = self.region.as_deref().or_else(|| profile.get("region").filter(|_| !known(&builder, Setting::Region)));
        if let Some(region) = region {
            builder = builder.with_region(region);
        }
        let has_endpoint = known(&builder, Setting::Endpoint) || known(&builder, Setting::S3Endpoint);
        let endpoint = self.endpoint.as_deref().or_else(|| profile.endpoint().filter(|_| !has_endpoint));
        if let Some(endpoint) = endpoint {
            builder = builder.with_config(Setting::S3Endpoint, endpoint);
        }
        if profile.get("s3.addressing_style") == Some("virtual") && endpoint.is_none() && !has_endpoint {
            builder = builder.with_virtual_hosted_style_request(true);
        }
        let used = [Setting::S3Endpoint, Setting::Endpoint].into_iter().find_map(|key| builder.get_config_value(&key));
        if let Some(used) = &used {
            check_endpoint(used)?;
        }
        check_amazon(&builder, anonymous)?;
        let signs = known(&builder, Setting::AccessKeyId)
            || known(&builder, Setting::SecretAccessKey)
            || known(&builder, Setting::WebIdentityTokenFile)
            || known(&builder, Setting::ContainerCredentialsRelativeUri)
            || known(&builder, Setting::ContainerCredentialsFullUri)
            || known(&builder, Setting::MetadataEndpoint)
            || environment.has(&["AWS_SKIP_SIGNATURE"])
            || environment.get("AWS_EC2_METADATA_DISABLED").is_none_or(|value| !value.eq_ignore_ascii_case("true"))
                && environment.host() == Host::Amazon;
        if anonymous || !signs {
            builder = builder.with_skip_signature(true);
        }
        let options = Self::client(options, used.is_some_and(|used| is_without_tls(&used)));
        let builder = builder.with_bucket_name(address.bucket()).with_client_options(options);
        Ok(builder.with_retry(self.retries()).with_http_connector(self.connector(address, anonymous, signs)))
    }

    fn google(&self, address: &Address, environment: &Environment) -> Result<GoogleCloudStorageBuilder, String> {
        let mut builder = GoogleCloudStorageBuilder::new();
        let mut options = ClientOptions::new();
        for (name, value) in environment.beginning("GOOGLE_") {
            match name.to_ascii_lowercase().parse() {
                Ok(GoogleConfigKey::Client(key)) => options = options.with_config(key, value),
                Ok(key) => builder = builder.with_config(key, value),
                Err(_) => {}
            }
        }
        if let Some(path) = environment.get("SERVICE_ACCOUNT") {
            builder = builder.with_service_account_path(path);
        }
        // As Google's own programs call it.
        let emulator = environment
            .get("STORAGE_EMULATOR_HOST")
            .map(|host| if host.contains("://") { host.to_owned() } else { format!("http://{host}") });
        if let Some(endpoint) = self.endpoint.as_ref().or(emulator.as_ref()) {
            builder = builder.with_config(GoogleConfigKey::BaseUrl, endpoint.trim_end_matches('/'));
        }
        let used = builder.get_config_value(&GoogleConfigKey::BaseUrl);
        if let Some(used) = &used {
            check_endpoint(used)?;
        }
        let known = |key: GoogleConfigKey| builder.get_config_value(&key).is_some();
        let default = environment.path("", ".config/gcloud/application_default_credentials.json");
        let has_default = || default.is_some_and(|path| environment.text(&path).is_ok_and(|text| text.is_some()));
        let skipped = builder.get_config_value(&GoogleConfigKey::SkipSignature).is_some_and(|value| value == "true");
        let signs = known(GoogleConfigKey::ServiceAccount)
            || known(GoogleConfigKey::ServiceAccountKey)
            || known(GoogleConfigKey::ApplicationCredentials)
            || environment.has(&["GOOGLE_SKIP_SIGNATURE", "GCE_METADATA_HOST", "METADATA_IP", "K_SERVICE", "CLOUD_RUN_JOB"])
            || emulator.is_none() && (has_default() || environment.host() == Host::Google);
        let anonymous = self.anonymous || skipped;
        if anonymous || !signs {
            // The crate asks for credentials all the same where it writes.
            let nobody = StaticCredentialProvider::new(GcpCredential { bearer: String::new() });
            builder = builder.with_skip_signature(true).with_credentials(Arc::new(nobody));
        }
        let options = Self::client(options, used.is_some_and(|used| is_without_tls(&used)));
        let builder = builder.with_bucket_name(address.bucket()).with_client_options(options);
        Ok(builder.with_retry(self.retries()).with_http_connector(self.connector(address, anonymous, signs)))
    }

    fn azure(&self, address: &Address, environment: &Environment) -> Result<MicrosoftAzureBuilder, String> {
        use AzureConfigKey as Setting;
        let mut builder = MicrosoftAzureBuilder::new();
        let mut options = ClientOptions::new();
        let connection = environment.get("AZURE_STORAGE_CONNECTION_STRING").unwrap_or_default();
        for (name, value) in connection.split(';').filter_map(|part| part.split_once('=')) {
            let key = match name.trim() {
                "AccountName" => Setting::AccountName,
                "AccountKey" => Setting::AccessKey,
                "SharedAccessSignature" => Setting::SasKey,
                "BlobEndpoint" => Setting::Endpoint,
                _ => continue,
            };
            builder = builder.with_config(key, value.trim());
        }
        // As the Azure command line calls them.
        for (name, key) in [("AZURE_STORAGE_ACCOUNT", Setting::AccountName), ("AZURE_STORAGE_KEY", Setting::AccessKey)] {
            if let Some(value) = environment.get(name) {
                builder = builder.with_config(key, value);
            }
        }
        for (name, value) in environment.beginning("AZURE_") {
            match name.to_ascii_lowercase().parse() {
                Ok(Setting::Client(key)) => options = options.with_config(key, value),
                Ok(key) => builder = builder.with_config(key, value),
                Err(_) => {}
            }
        }
        if let Some(endpoint) = environment.get("IDENTITY_ENDPOINT") {
            builder = builder.with_msi_endpoint(endpoint);
        }
        if let Some((account, rest)) = address.account_host().and_then(|host| host.split_once('.')) {
            builder = builder.with_account(account).with_use_fabric_endpoint(rest.ends_with("fabric.microsoft.com"));
        }
        if let Some(endpoint) = &self.endpoint {
            let account = builder.get_config_value(&Setting::AccountName).unwrap_or_default();
            builder = builder.with_endpoint(with_account(endpoint, &account));
        }
        let is = |key: Setting| builder.get_config_value(&key).is_some_and(|value| value == "true");
        let known = |key: Setting| builder.get_config_value(&key).is_some();
        let (emulator, skipped) = (is(Setting::UseEmulator), is(Setting::SkipSignature));
        if !known(Setting::AccountName) && !emulator {
            return Err(
                "no storage account is named; expected AZURE_STORAGE_ACCOUNT_NAME, or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY"
                    .to_owned(),
            );
        }
        if emulator && self.endpoint.is_some() {
            return Err(
                "AZURE_STORAGE_USE_EMULATOR says where the store is, and so does endpoint=; expected one of both".to_owned()
            );
        }
        let used = builder.get_config_value(&Setting::Endpoint);
        if let Some(used) = &used {
            check_endpoint(used)?;
        }
        let key = builder.get_config_value(&Setting::AccessKey);
        if key.is_some_and(|key| BASE64_STANDARD.decode(key).is_err()) {
            return Err(
                "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_KEY or AccountKey of AZURE_STORAGE_CONNECTION_STRING is not Base64; \
                        expected the account's key"
                    .to_owned(),
            );
        }
        let signs = emulator
            || [Setting::AccessKey, Setting::SasKey, Setting::Token, Setting::ClientId, Setting::ClientSecret]
                .into_iter()
                .any(known)
            || [Setting::MsiEndpoint, Setting::FederatedTokenFile, Setting::CredentialType].into_iter().any(known)
            || [Setting::FabricSessionToken, Setting::ObjectId, Setting::MsiResourceId].into_iter().any(known)
            || is(Setting::UseAzureCli)
            || environment.has(&["AZURE_SKIP_SIGNATURE"])
            || environment.host() == Host::Azure;
        let anonymous = self.anonymous || skipped;
        if anonymous || !signs {
            builder = builder.with_skip_signature(true);
        }
        let options = Self::client(options, used.is_some_and(|used| is_without_tls(&used)));
        let builder = builder.with_container_name(address.bucket()).with_client_options(options);
        Ok(builder.with_retry(self.retries()).with_http_connector(self.connector(address, anonymous, signs)))
    }

    /// Makes the connections of a store. If nobody wants requests to go unsigned, and they do, that is told where one is refused.
    fn connector(&self, address: &Address, wanted: bool, signs: bool) -> Connector {
        let unsigned = !wanted && !signs;
        if unsigned {
            debug!("{address}: no credentials are found: requests are not signed, as with -o anonymous");
        }
        Connector::to_store(unsigned, self.silence(), self.connections)
    }

    /// After which a connection is given up, early enough to try another one.
    fn silence(&self) -> Duration {
        (self.timeout / 3).max(Duration::from_millis(100))
    }

    /// The same options, without times, which connections have of their own.
    fn client(options: ClientOptions, without_tls: bool) -> ClientOptions {
        let options = options.with_timeout_disabled();
        if without_tls { options.with_allow_http(true) } else { options.with_config(ClientConfigKey::AllowHttp, "false") }
    }

    fn retries(&self) -> RetryConfig {
        // The last answer is to come before the time is over, as it says more than that.
        let (init_backoff, max_backoff) =
            (self.timeout.min(Duration::from_secs(4)) / 40, self.timeout.min(Duration::from_secs(24)) / 8);
        let backoff = BackoffConfig { init_backoff, max_backoff, base: 2.0 };
        RetryConfig { backoff, max_retries: TRIES, retry_timeout: self.timeout * 3 / 4 }
    }
}

/// That the keys of Amazon can be sent, and are whole. Errors name the variables, which count more than a profile's settings.
fn check_amazon(builder: &AmazonS3Builder, anonymous: bool) -> Result<(), String> {
    use AmazonS3ConfigKey as Setting;
    let value = |key: Setting| builder.get_config_value(&key);
    // The crate panics at them.
    for (key, name) in
        [(Setting::AccessKeyId, "AWS_ACCESS_KEY_ID"), (Setting::Token, "AWS_SESSION_TOKEN"), (Setting::Region, "AWS_REGION")]
    {
        if value(key).is_some_and(|value| HeaderValue::from_str(&value).is_err()) {
            return Err(format!(
                "{name}, or the profile's setting, has a character that no header can have; expected letters, digits and signs of ASCII"
            ));
        }
    }
    match (value(Setting::AccessKeyId), value(Setting::SecretAccessKey)) {
        (Some(_), None) if !anonymous => {
            Err("there is a key id without its secret; expected AWS_SECRET_ACCESS_KEY, or aws_secret_access_key in the profile"
                .to_owned())
        }
        (None, Some(_)) if !anonymous => {
            Err("there is a secret without its key id; expected AWS_ACCESS_KEY_ID, or aws_access_key_id in the profile"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// Where the settings of Google come from, to stand before what is wrong with them.
fn google_settings(builder: &GoogleCloudStorageBuilder, environment: &Environment) -> String {
    let value = |key: GoogleConfigKey| builder.get_config_value(&key);
    let default = || environment.path("", ".config/gcloud/application_default_credentials.json");
    match (value(GoogleConfigKey::ServiceAccount), value(GoogleConfigKey::ServiceAccountKey)) {
        (Some(path), _) => format!("the service account in {}: ", plain(&path)),
        (None, Some(_)) => "the key in GOOGLE_SERVICE_ACCOUNT_KEY: ".to_owned(),
        (None, None) => match value(GoogleConfigKey::ApplicationCredentials) {
            Some(path) => format!("GOOGLE_APPLICATION_CREDENTIALS, {}: ", plain(&path)),
            None => default().map(|path| format!("{}: ", plain(&path))).unwrap_or_default(),
        },
    }
}

/// An endpoint with the account behind it, where its host is no name that could have it.
fn with_account(endpoint: &str, account: &str) -> String {
    let is_alone = |url: &Url| {
        let is_nobodys = match url.host() {
            Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
            host => host.is_some(),
        };
        is_nobodys && url.path() == "/"
    };
    match Url::parse(endpoint) {
        Ok(url) if is_alone(&url) && !account.is_empty() => format!("{}/{account}", endpoint.trim_end_matches('/')),
        _ => endpoint.to_owned(),
    }
}

/// Settings that say where a store is, as one text.
fn origin<K, const N: usize>(settings: [K; N], get: impl Fn(&K) -> Option<String>) -> String {
    settings.map(|key| get(&key).unwrap_or_default()).join(" ")
}

/// What user info says, as a header.
fn basic(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let mut pair = decoded(url.username());
    pair.push(b':');
    pair.extend(decoded(url.password().unwrap_or_default()));
    let mut value = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Without percent-encoding.
fn decoded(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut decoded = Vec::new();
    while let Some((byte, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|_| *byte == b'%').filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let code = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        rest = behind.get(if code.is_some() { 2 } else { 0 }..).unwrap_or_default();
        decoded.push(code.unwrap_or(*byte));
    }
    decoded
}

fn is_without_tls(endpoint: &str) -> bool {
    endpoint.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"))
}

/// That it is a place and holds no secret: it is shown in logs.
///
/// # Errors
/// What it is not, in words that do not show it.
pub fn check_endpoint(endpoint: &str) -> Result<(), String> {
    let expected = "expected http://HOST:PORT or https://HOST";
    let url = Url::parse(endpoint).map_err(|error| format!("the endpoint is no URL ({error}); {expected}"))?;
    match () {
        () if !matches!(url.scheme(), "http" | "https") || !url.has_host() => {
            Err(format!("the endpoint is not the URL of a web server; {expected}"))
        }
        () if !url.username().is_empty() || url.password().is_some() => Err(format!("the endpoint has user info; {expected}")),
        () if url.query().is_some() || url.fragment().is_some() => {
            Err(format!("the endpoint has a query or fragment; {expected}"))
        }
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests;
