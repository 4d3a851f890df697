//! What a user says of how a remote frame is reached: words of `-o`, which mount(8) knows too, and `--connections`.
//!
//! No error shows a value that may be a secret.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::values::{parts, seconds, split};
use crate::store::remote::{Access, Address, check_endpoint};

/// Of commands that read or write frames at URLs.
#[derive(clap::Args, Debug, Clone, Default)]
pub(super) struct RemoteArgs {
    /// For frames at URLs: endpoint=URL, region=NAME, anonymous, headers=FILE, timeout=SECONDS, unsafe-immutable. b2fuse mount --help
    /// explains them
    #[arg(short = 'o', value_name = "OPTION,...")]
    options: Vec<OsString>,
    /// For frames at URLs: how many requests at a time [default: 64]
    #[arg(long, value_name = "N", value_parser = connections)]
    connections: Option<usize>,
}

impl RemoteArgs {
    /// That there is something that they are of.
    ///
    /// # Errors
    /// None of the paths is a URL: wrong usage.
    pub(super) fn check(&self, paths: &[&Path]) -> Result<(), String> {
        let is_given = !self.options.is_empty() || self.connections.is_some();
        match is_given && !paths.iter().any(|path| Address::parse(path).is_some()) {
            true => Err("-o and --connections are for frames at URLs, and no URL is given".to_owned()),
            false => Ok(()),
        }
    }

    /// What they say.
    ///
    /// # Errors
    /// What is wrong with a word, naming it: wrong usage.
    pub(super) fn access(&self) -> Result<Access, String> {
        let mut access = Access::default();
        for word in self.options.iter().flat_map(|list| split(list.as_bytes())).filter(|word| !word.is_empty()) {
            let (name, value) = parts(&word);
            let name = String::from_utf8_lossy(name);
            take(&mut access, &name, value).unwrap_or_else(|| {
                Err(format!(
                    "unknown option '{name}'; expected endpoint=, region=, anonymous, headers=, refresh=, timeout=, connections= or \
                     unsafe-immutable"
                ))
            })?;
        }
        if let Some(connections) = self.connections {
            access.connections = connections;
        }
        Ok(access)
    }
}

/// Takes a word of `-o`, if it is one of these.
///
/// # Errors
/// What is wrong with its value.
pub(super) fn take(access: &mut Access, name: &str, value: Option<&[u8]>) -> Option<Result<(), String>> {
    let taken = match (name, value) {
        ("anonymous", None) => {
            access.anonymous = true;
            Ok(())
        }
        ("unsafe-immutable" | "unsafe_immutable", None) => {
            access.unsafe_immutable = true;
            Ok(())
        }
        ("endpoint" | "region" | "headers" | "refresh" | "timeout" | "connections", _) => valued(access, name, value),
        _ => return None,
    };
    Some(taken)
}

fn valued(access: &mut Access, name: &str, value: Option<&[u8]>) -> Result<(), String> {
    let value = value.filter(|value| !value.is_empty()).ok_or_else(|| format!("mount option '{name}' needs a value"))?;
    if name == "headers" {
        // The daemon may be in another directory when it reads them.
        let path = std::path::absolute(Path::new(OsStr::from_bytes(value)));
        access.headers = Some(path.map_err(|_| "mount option 'headers': expected a path".to_owned())?);
        return Ok(());
    }
    let text = str::from_utf8(value).map_err(|_| format!("mount option '{name}': the value is not UTF-8 text"))?;
    let wrong = |what: String| format!("mount option '{name}': {what}");
    match name {
        "endpoint" => {
            check_endpoint(text).map_err(wrong)?;
            access.endpoint = Some(text.to_owned());
        }
        "region" => {
            let good = text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
            access.region = Some(text.to_owned()).filter(|_| good);
            access.region.as_ref().ok_or_else(|| wrong("expected a name such as eu-west-1".to_owned()))?;
        }
        "refresh" => access.refresh = seconds(text).map_err(wrong)?,
        "timeout" => {
            let time = seconds(text).map_err(wrong)?;
            let good = (Duration::from_millis(100)..=Duration::from_secs(24 * 3600)).contains(&time);
            access.timeout = Some(time).filter(|_| good).ok_or_else(|| wrong("expected 0.1 to 86400 seconds".to_owned()))?;
        }
        _ => access.connections = connections(text).map_err(wrong)?,
    }
    Ok(())
}

/// A number of requests.
///
/// # Errors
/// What was expected.
pub(super) fn connections(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| (1..=1024).contains(number)).ok_or_else(|| "expected a number from 1 to 1024".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Access, String> {
        RemoteArgs { options: vec![list.into()], connections: None }.access()
    }

    #[test]
    fn words() {
        assert_eq!(parse("").unwrap(), Access::default());
        let access =
            parse("endpoint=http://127.0.0.1:9000,region=eu-1,anonymous,refresh=0,timeout=0.5,unsafe-immutable").unwrap();
        assert_eq!((access.endpoint.as_deref(), access.region.as_deref()), (Some("http://127.0.0.1:9000"), Some("eu-1")));
        assert_eq!((access.refresh, access.timeout), (Duration::ZERO, Duration::from_millis(500)));
        assert!(access.anonymous && access.unsafe_immutable);
        assert!(parse("unsafe_immutable,connections=7").is_ok_and(|access| access.unsafe_immutable && access.connections == 7));
        let access = parse(r"headers=a\,b").unwrap();
        assert_eq!(access.headers.unwrap(), std::env::current_dir().unwrap().join("a,b"));
        let args = RemoteArgs { options: vec!["timeout=9".into(), "connections=3,timeout=8".into()], connections: Some(5) };
        assert!(args.access().is_ok_and(|access| access.timeout.as_secs() == 8 && access.connections == 5));
    }

    #[test]
    fn words_are_for_urls() {
        let given = RemoteArgs { options: vec!["anonymous".into()], connections: None };
        let paths = |paths: &[&str]| given.check(&paths.iter().map(Path::new).collect::<Vec<_>>());
        assert!(paths(&["a", "s3://bucket/key"]).is_ok() && paths(&["http://"]).is_ok());
        assert!(paths(&["a", "./s3://bucket"]).is_err() && paths(&[]).is_err());
        assert!(RemoteArgs::default().check(&[]).is_ok());
    }

    #[test]
    fn wrong_words_are_named_and_secrets_are_not() {
        for (word, what) in [
            ("endpoint=https://u:SECRET@h", "'endpoint': the endpoint has user info"),
            ("endpoint=SECRET", "'endpoint': the endpoint is no URL"),
            ("endpoint", "'endpoint' needs a value"),
            ("endpoint=", "'endpoint' needs a value"),
            ("region=a/SECRET", "'region': expected a name"),
            ("timeout=0", "'timeout': expected 0.1 to 86400"),
            ("timeout=soon", "'timeout': expected a number of seconds"),
            ("refresh=-1", "'refresh': expected a number of seconds"),
            ("connections=0", "'connections': expected a number from 1 to 1024"),
            ("anonymous=SECRET", "unknown option 'anonymous'"),
            ("key=SECRET", "unknown option 'key'; expected endpoint="),
        ] {
            let error = parse(word).unwrap_err();
            assert!(error.contains(what) && !error.contains("SECRET"), "{word}: {error}");
        }
    }
}
