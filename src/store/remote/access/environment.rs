//! What a process is told from outside: environment variables, files in the user's home, and on whose machine it runs.
//!
//! Nothing here waits for a network. A value that is empty is one that is not set.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::store::local;

/// Bytes of a file of settings, at most.
const MOST: u64 = 1 << 20;

/// Whose machine it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// A virtual machine of Amazon's.
    Amazon,
    /// One of Google's.
    Google,
    /// One of Microsoft's cloud.
    Azure,
    /// None of them.
    Other,
}

/// The surroundings of a process. It holds secrets, so it cannot be printed.
pub struct Environment {
    variables: BTreeMap<String, String>,
    /// Where the system tells of the machine.
    system: PathBuf,
}

impl Environment {
    /// Of this process.
    pub fn of_process() -> Self {
        let text =
            |(name, value): (std::ffi::OsString, std::ffi::OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        Self::of(std::env::vars_os().filter_map(text), Path::new("/sys"))
    }

    /// Of these variables, on the machine that a directory like `/sys` tells of.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>, system: &Path) -> Self {
        let variables = variables.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        Environment { variables, system: system.to_owned() }
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Whether any of these is set.
    pub fn has(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.variables.contains_key(*name))
    }

    /// All variables whose names begin so.
    pub fn beginning(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> {
        let named = self.variables.iter().filter(move |(name, _)| name.starts_with(prefix));
        named.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The path that a variable has; else that of a file in the user's home.
    pub fn path(&self, variable: &str, in_home: &str) -> Option<PathBuf> {
        match self.get(variable) {
            Some(path) => Some(self.expanded(path)),
            None => Some(Path::new(self.get("HOME")?).join(in_home)),
        }
    }

    fn expanded(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), self.get("HOME")) {
            (Some(rest), Some(home)) => Path::new(home).join(rest),
            _ => path.into(),
        }
    }

    /// The text of a file of settings; `None` if there is none.
    ///
    /// # Errors
    /// What the system refuses; what is no text.
    pub fn text(&self, path: &Path) -> io::Result<Option<String>> {
        match local::read_small(path, MOST) {
            Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| io::Error::other("it is no text in UTF-8")),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whose machine this is, by what its firmware says.
    pub fn host(&self) -> Host {
        let says = |name: &str| {
            let bytes = local::read_small(&self.system.join("class/dmi/id").join(name), 4096).unwrap_or_default();
            String::from_utf8_lossy(&bytes).trim().to_lowercase()
        };
        match () {
            () if says("sys_vendor").contains("amazon") || says("bios_version").contains("amazon") => Host::Amazon,
            () if says("product_name").starts_with("google") => Host::Google,
            () if says("chassis_asset_tag") == "7783-7084-3265-9085-8269-3286-77" => Host::Azure,
            () => Host::Other,
        }
    }
}
