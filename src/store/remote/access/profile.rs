//! The files of the AWS command line: `~/.aws/config` and `~/.aws/credentials`.
//!
//! Read are the keys, region and endpoint of a profile, and a role that is taken with a web identity. A profile that gets its keys in
//! another way (single sign-on, a program, another profile) is an error that says so: nobody should read a bucket as somebody else than
//! he thinks.

use std::collections::BTreeMap;

use super::environment::Environment;
use crate::format::plain::plain;
use crate::store::in_words;

/// Sections by name, each with its settings. An indented setting is called by that above it: `s3.endpoint_url`.
type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// What a profile says.
#[derive(Default, PartialEq, Eq)]
pub struct Profile {
    settings: BTreeMap<String, String>,
    services: BTreeMap<String, String>,
}

/// Settings by which keys come that are not in a file.
const ELSEWHERE: &[(&str, &str)] = &[
    ("credential_process", "from a program (credential_process)"),
    ("sso_session", "by single sign-on"),
    ("sso_start_url", "by single sign-on"),
    ("source_profile", "by taking a role (source_profile)"),
    ("credential_source", "by taking a role (credential_source)"),
    ("login_session", "by signing in (aws login)"),
];

impl Profile {
    /// The profile that is chosen, or `default`.
    ///
    /// # Errors
    /// A file that cannot be read; a profile that is chosen and not there.
    pub fn read(environment: &Environment) -> Result<Self, String> {
        let chosen = environment.get("AWS_PROFILE").or_else(|| environment.get("AWS_DEFAULT_PROFILE"));
        let name = chosen.unwrap_or("default");
        let mut profile = Profile::default();
        let mut found = false;
        // What is in the second file counts more.
        for (variable, in_home) in [("AWS_CONFIG_FILE", ".aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")] {
            let Some(path) = environment.path(variable, in_home) else { continue };
            let text = environment.text(&path);
            let text = text.map_err(|error| format!("{} cannot be read: {}", plain(&path), in_words(&error)))?;
            let mut sections = sections(text.as_deref().unwrap_or_default());
            for section in [name.to_owned(), format!("profile {name}")] {
                if let Some(settings) = sections.remove(&section) {
                    found = true;
                    profile.settings.extend(settings);
                }
            }
            let services = profile.settings.get("services").and_then(|services| sections.remove(&format!("services {services}")));
            profile.services.extend(services.unwrap_or_default());
        }
        match chosen {
            Some(name) if !found => {
                Err(format!("there is no profile '{}' in the files of AWS; expected that of AWS_PROFILE", plain(name)))
            }
            _ => Ok(profile),
        }
    }

    /// A setting.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Where its S3 is.
    pub fn endpoint(&self) -> Option<&str> {
        let of_service = self.services.get("s3.endpoint_url").map(String::as_str).or_else(|| self.get("s3.endpoint_url"));
        of_service.or_else(|| self.get("endpoint_url"))
    }

    /// How its keys come, if that is a way that only the AWS command line knows.
    pub fn elsewhere(&self) -> Option<&'static str> {
        let has = |(name, _): &&(&str, &str)| self.get(name).is_some();
        let keys = self.get("aws_access_key_id").is_some() || self.get("web_identity_token_file").is_some();
        if keys { None } else { ELSEWHERE.iter().find(has).map(|(_, words)| *words) }
    }
}

fn sections(text: &str) -> Sections {
    let mut all = Sections::new();
    let mut section = None;
    let mut above = String::new();
    for line in text.lines() {
        let indented = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').filter(|_| !indented) {
            // `[profile "a b"]` and what is behind it.
            let name = name.split(']').next().unwrap_or_default().replace(['"', '\''], "");
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            all.entry(name.clone()).or_default();
            section = Some(name);
            above.clear();
            continue;
        }
        let (Some(section), Some((name, value))) = (&section, line.split_once('=')) else { continue };
        let (name, value) = (name.trim().to_ascii_lowercase(), without_comment(value).to_owned());
        let settings = all.entry(section.clone()).or_default();
        if indented && !above.is_empty() {
            settings.insert(format!("{above}.{name}"), value);
        } else {
            above.clone_from(&name);
            settings.insert(name, value);
        }
    }
    all
}

fn without_comment(value: &str) -> &str {
    let end = [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| value.find(mark)).min();
    end.and_then(|end| value.get(..end)).unwrap_or(value).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
# of the user
[default]
region = eu-west-1   # near
[profile lab]
region=lab-1
endpoint_url = http://lab:9000
services = here
[profile \"two  words\"]
s3 =
  endpoint_url = http://s3.lab
  addressing_style = virtual
output = json
[profile sso]
sso_session = x
[services here]
s3 =
\tendpoint_url = http://s3.here
ec2 =
  endpoint_url = http://ec2.here
";
    const CREDENTIALS: &str = "[default]\r\naws_access_key_id = AK\r\naws_secret_access_key=a=b/+;c\r\n[lab]\nregion = lab-2\n";

    fn profile(name: &str) -> Result<Profile, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".aws")).unwrap();
        std::fs::write(dir.path().join(".aws/config"), CONFIG).unwrap();
        std::fs::write(dir.path().join("elsewhere"), CREDENTIALS).unwrap();
        let home = dir.path().to_str().unwrap().to_owned();
        let variables = [("HOME", home.as_str()), ("AWS_PROFILE", name), ("AWS_SHARED_CREDENTIALS_FILE", "~/elsewhere")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Profile::read(&Environment::of(variables, dir.path()))
    }

    #[test]
    fn profiles() {
        let default = profile("").unwrap_or_default();
        assert_eq!((default.get("region"), default.get("aws_access_key_id")), (Some("eu-west-1"), Some("AK")));
        assert_eq!((default.get("aws_secret_access_key"), default.endpoint()), (Some("a=b/+;c"), None));
        let lab = profile("lab").unwrap_or_default();
        assert_eq!((lab.get("region"), lab.endpoint()), (Some("lab-2"), Some("http://s3.here")));
        assert_eq!(lab.get("aws_access_key_id"), None);
        let words = profile("two words").unwrap_or_default();
        assert_eq!((words.endpoint(), words.get("output")), (Some("http://s3.lab"), Some("json")));
        assert_eq!(words.get("s3.addressing_style"), Some("virtual"));
        assert_eq!((words.get("endpoint_url"), words.elsewhere()), (None, None));
        assert_eq!(profile("sso").unwrap_or_default().elsewhere(), Some("by single sign-on"));
        assert!(profile("none").err().unwrap().contains("'none'"));
    }

    #[test]
    fn no_files_say_nothing() {
        let empty = Environment::of([], "/none".as_ref());
        assert!(Profile::read(&empty).is_ok_and(|profile| profile == Profile::default()));
        for text in ["[", "=", "[]", "[a\n b=c", " x = y", "[a]\n = \n", "\u{feff}[a]"] {
            sections(text);
        }
    }
}
