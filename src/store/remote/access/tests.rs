use std::path::Path;

use super::*;

/// An environment of these variables, with a home that has these files, on a machine that its firmware calls so.
fn with(variables: &[(&str, &str)], files: &[(&str, &str)], vendor: &str) -> (tempfile::TempDir, Environment) {
    let dir = tempfile::tempdir().unwrap();
    let firmware = dir.path().join("class/dmi/id");
    std::fs::create_dir_all(&firmware).unwrap();
    std::fs::write(firmware.join("sys_vendor"), vendor).unwrap();
    std::fs::write(firmware.join("product_name"), vendor).unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let home = dir.path().to_str().unwrap();
    let variables = variables.iter().copied().chain([("HOME", home)]).map(|(name, value)| (name.to_owned(), value.to_owned()));
    let environment = Environment::of(variables.collect::<Vec<_>>(), dir.path());
    (dir, environment)
}

fn address(text: &str) -> Address {
    Address::parse(text).unwrap().unwrap()
}

type Setting = AmazonS3ConfigKey;

const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "AK"), ("AWS_SECRET_ACCESS_KEY", "SECRET")];
const FILES: &[(&str, &str)] = &[
    (".aws/credentials", "[default]\naws_access_key_id=FILE\naws_secret_access_key=SECRET\naws_session_token=TOKEN\n[lab]\n"),
    (".aws/config", "[default]\nregion=eu-file\nendpoint_url=http://file:1\n[profile sso]\nsso_start_url=x\n"),
];

/// The endpoint, region, key, token, whether requests are signed, and whether plain connections are allowed.
fn amazon(access: &Access, variables: &[(&str, &str)], files: &[(&str, &str)], vendor: &str) -> Result<[String; 6], String> {
    let (_dir, environment) = with(variables, files, vendor);
    let builder = access.amazon(&address("s3://bucket/key"), &environment)?;
    let keys = [Setting::S3Endpoint, Setting::Region, Setting::AccessKeyId, Setting::Token, Setting::SkipSignature];
    let [endpoint, region, key, token, skipped] = keys.map(|key| builder.get_config_value(&key).unwrap_or_default());
    let plain = builder.get_config_value(&Setting::Client(ClientConfigKey::AllowHttp)).unwrap_or_default();
    builder.build().map_err(|error| in_words(&error))?;
    Ok([endpoint, region, key, token, skipped, plain])
}

#[test]
fn options_count_more_than_variables_and_those_more_than_files() {
    let plain = Access::default();
    let of_files = ["http://file:1", "eu-file", "FILE", "TOKEN", "false", "true"];
    assert_eq!(amazon(&plain, &[], FILES, "").unwrap(), of_files);
    let variables = [KEYS[0], KEYS[1], ("AWS_REGION", "eu-var"), ("AWS_ENDPOINT_URL_S3", "https://var")];
    assert_eq!(amazon(&plain, &variables, FILES, "").unwrap(), ["https://var", "eu-var", "AK", "", "false", "false"]);
    let options = Access { endpoint: Some("http://opt:9".into()), region: Some("eu-opt".into()), ..Access::default() };
    assert_eq!(amazon(&options, &variables, FILES, "").unwrap(), ["http://opt:9", "eu-opt", "AK", "", "false", "true"]);
    // A variable for all services stands against the file, which is for all of them too.
    let variables = [KEYS[0], KEYS[1], ("AWS_ENDPOINT_URL", "http://all:1"), ("AWS_DEFAULT_REGION", "eu-def")];
    assert_eq!(amazon(&plain, &variables, FILES, "").unwrap(), ["", "eu-def", "AK", "", "false", "true"]);
}

#[test]
fn plain_connections_are_made_only_to_an_endpoint_that_says_so() {
    let variables = [KEYS[0], KEYS[1], ("AWS_ALLOW_HTTP", "true")];
    assert_eq!(amazon(&Access::default(), &variables, &[], "").unwrap()[5], "false");
    assert!(is_without_tls("HTTP://x") && !is_without_tls("https://x") && !is_without_tls("é"));
}

#[test]
fn who_has_no_keys_goes_unsigned() {
    let signed = |access: &Access, variables: &[(&str, &str)], files: &[(&str, &str)], vendor: &str| {
        amazon(access, variables, files, vendor).unwrap()[4] == "false"
    };
    let plain = Access::default();
    let anonymous = Access { anonymous: true, ..Access::default() };
    assert!(!signed(&plain, &[], &[], "Some vendor"));
    assert!(signed(&plain, &[], &[], "Amazon EC2\n"));
    assert!(!signed(&plain, &[("AWS_EC2_METADATA_DISABLED", "true")], &[], "Amazon EC2"));
    assert!(signed(&plain, &KEYS, &[], "") && !signed(&anonymous, &KEYS, FILES, "Amazon EC2"));
    assert!(!signed(&plain, &[("AWS_SKIP_SIGNATURE", "true")], FILES, ""));
    assert!(signed(&plain, &[("AWS_SKIP_SIGNATURE", "false")], &[], ""), "who says so, knows a place to ask");
    assert!(signed(&plain, &[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x")], &[], ""));
    assert!(signed(&plain, &[("AWS_WEB_IDENTITY_TOKEN_FILE", "/x"), ("AWS_ROLE_ARN", "y")], &[], ""));
    assert!(!signed(&plain, &[("AWS_PROFILE", "lab")], FILES, ""));
}

#[test]
fn profiles_whose_keys_are_elsewhere_are_refused() {
    let error = amazon(&Access::default(), &[("AWS_PROFILE", "sso")], FILES, "").unwrap_err();
    assert!(error.contains("by single sign-on") && error.contains("expected"), "{error}");
    assert!(amazon(&Access { anonymous: true, ..Access::default() }, &[("AWS_PROFILE", "sso")], FILES, "").is_ok());
    assert!(amazon(&Access::default(), &[("AWS_PROFILE", "sso"), KEYS[0], KEYS[1]], FILES, "").is_ok());
    assert!(amazon(&Access::default(), &[("AWS_PROFILE", "none")], FILES, "").unwrap_err().contains("'none'"));
    let error = amazon(&Access::default(), &[KEYS[1]], &[], "").unwrap_err();
    assert!(!error.contains("SECRET") && error.contains("expected AWS_ACCESS_KEY_ID"), "{error}");
    let error = amazon(&Access::default(), &[KEYS[0]], &[], "").unwrap_err();
    assert!(error.contains("expected AWS_SECRET_ACCESS_KEY"), "{error}");
}

#[test]
fn keys_that_no_header_can_have_are_refused() {
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION"] {
        for value in ["x\nHIDDEN", "HIDDEN\r", "HIDDEN\0"] {
            let others = KEYS.into_iter().filter(|(other, _)| *other != name);
            let variables: Vec<_> = others.chain([(name, value)]).collect();
            let error = amazon(&Access::default(), &variables, &[], "").unwrap_err();
            assert!(error.contains(name) && !error.contains("HIDDEN"), "{error}");
        }
    }
}

#[test]
fn settings_that_cannot_be_read_are_named() {
    let error = |url: &str, variables: &[(&str, &str)]| {
        let (_dir, environment) = with(variables, &[], "");
        Access::default().open_in(&address(url), &environment).unwrap_err()
    };
    let of_azure = error("az://c/k", &[("AZURE_STORAGE_ACCOUNT", "a"), ("AZURE_STORAGE_KEY", "not base64")]);
    assert!(of_azure.contains("AZURE_STORAGE_KEY") && !of_azure.contains("not base64"), "{of_azure}");
    let missing = error("gs://b/k", &[("GOOGLE_APPLICATION_CREDENTIALS", "/none/key.json")]);
    assert!(missing.contains("GOOGLE_APPLICATION_CREDENTIALS, /none/key.json"), "{missing}");
    let missing = error("gs://b/k", &[("GOOGLE_SERVICE_ACCOUNT", "/none/sa.json")]);
    assert!(missing.contains("the service account in /none/sa.json"), "{missing}");
}

#[test]
fn an_endpoint_of_azure_has_the_account_behind_it() {
    for (endpoint, whole) in [
        ("http://127.0.0.1:10000", "http://127.0.0.1:10000/dev"),
        ("http://localhost:10000/", "http://localhost:10000/dev"),
        ("http://[::1]:80", "http://[::1]:80/dev"),
        ("http://127.0.0.1:10000/other", "http://127.0.0.1:10000/other"),
        ("https://dev.blob.core.windows.net", "https://dev.blob.core.windows.net"),
    ] {
        assert_eq!(with_account(endpoint, "dev"), whole);
        assert_eq!(with_account(endpoint, ""), endpoint);
    }
    let access = Access { endpoint: Some("http://127.0.0.1:1".into()), ..Access::default() };
    let (_dir, emulated) = with(&[("AZURE_STORAGE_USE_EMULATOR", "true")], &[], "");
    assert!(access.open_in(&address("az://c/k"), &emulated).unwrap_err().contains("AZURE_STORAGE_USE_EMULATOR"));
}

#[test]
fn endpoints() {
    for good in ["http://127.0.0.1:9000", "https://minio.lab/base/", "http://[::1]:80"] {
        assert_eq!(check_endpoint(good), Ok(()));
    }
    for bad in [
        "",
        "127.0.0.1:9000",
        "ftp://x",
        "http://",
        "https://SECRET@x",
        "https://u:SECRET@x",
        "http://x?SECRET",
        "http://x#SECRET",
    ] {
        let error = check_endpoint(bad).unwrap_err();
        assert!(error.contains("expected http") && !error.contains("SECRET"), "{bad}: {error}");
        let access = Access { endpoint: Some(bad.into()), ..Access::default() };
        assert!(access.open_in(&address("s3://b/k"), &with(&[], &[], "").1).is_err());
    }
    let error = amazon(&Access::default(), &[("AWS_ENDPOINT_URL", "http://u:SECRET@x")], &[], "").unwrap_err();
    assert!(error.contains("user info") && !error.contains("SECRET"), "{error}");
}

#[test]
fn google() {
    let access = Access::default();
    let (_dir, plain) = with(&[], &[], "");
    let value = |builder: &GoogleCloudStorageBuilder, key| builder.get_config_value(&key).unwrap_or_default();
    let place = address("gs://bucket/key");
    let builder = access.google(&place, &plain).unwrap();
    assert_eq!(value(&builder, GoogleConfigKey::SkipSignature), "true");
    let (_dir, on_google) = with(&[], &[], "Google Compute Engine");
    assert_eq!(value(&access.google(&place, &on_google).unwrap(), GoogleConfigKey::SkipSignature), "false");
    let file = ".config/gcloud/application_default_credentials.json";
    let (_dir, signed_in) = with(&[], &[(file, "{}")], "");
    assert_eq!(value(&access.google(&place, &signed_in).unwrap(), GoogleConfigKey::SkipSignature), "false");
    let (_dir, emulated) = with(&[("STORAGE_EMULATOR_HOST", "localhost:4443")], &[(file, "{}")], "");
    let builder = access.google(&place, &emulated).unwrap();
    assert_eq!(value(&builder, GoogleConfigKey::BaseUrl), "http://localhost:4443");
    assert_eq!(value(&builder, GoogleConfigKey::SkipSignature), "true");
    assert_eq!(value(&builder, GoogleConfigKey::Client(ClientConfigKey::AllowHttp)), "true");
    let opened = access.open_in(&place, &emulated).unwrap();
    assert_eq!(opened.key.as_ref(), "key");
}

#[test]
fn google_is_written_to_without_credentials() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\nbytes") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            asked.push(byte[0]);
        }
        let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \"1\"\r\nx-goog-generation: 1\r\nContent-Length: 0\r\n\r\n";
        client.write_all(answer.as_bytes()).unwrap();
        String::from_utf8(asked).unwrap().to_ascii_lowercase()
    });
    let access = Access { endpoint: Some(endpoint), anonymous: true, ..Access::default() };
    let opened = access.open_in(&address("gs://bucket/key"), &with(&[], &[], "").1).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(opened.store.put_opts(&opened.key, "bytes".into(), object_store::PutOptions::default())).unwrap();
    let asked = server.join().unwrap();
    assert!(asked.starts_with("put /bucket/key") && !asked.contains("authorization"), "{asked}");
}

#[test]
fn azure() {
    let access = Access::default();
    let value = |builder: &MicrosoftAzureBuilder, key| builder.get_config_value(&key).unwrap_or_default();
    let plain = with(&[], &[], "").1;
    let error = access.open_in(&address("az://c/k"), &plain).unwrap_err();
    assert!(error.contains("AZURE_STORAGE_ACCOUNT_NAME"), "{error}");
    let builder = access.azure(&address("abfss://c@acc.dfs.core.windows.net/k"), &plain).unwrap();
    assert_eq!(value(&builder, AzureConfigKey::AccountName), "acc");
    assert_eq!(value(&builder, AzureConfigKey::SkipSignature), "true");
    builder.build().unwrap();
    let connection = "DefaultEndpointsProtocol=http;AccountName=dev;AccountKey=c2VjcmV0cw==;BlobEndpoint=http://127.0.0.1:1/dev;";
    let (_dir, named) = with(&[("AZURE_STORAGE_CONNECTION_STRING", connection)], &[], "");
    let builder = access.azure(&address("az://c/k"), &named).unwrap();
    let all = [AzureConfigKey::AccountName, AzureConfigKey::AccessKey, AzureConfigKey::Endpoint, AzureConfigKey::SkipSignature];
    assert_eq!(all.map(|key| value(&builder, key)), ["dev", "c2VjcmV0cw==", "http://127.0.0.1:1/dev", "false"]);
    assert_eq!(value(&builder, AzureConfigKey::Client(ClientConfigKey::AllowHttp)), "true");
    let (_dir, named) = with(&[("AZURE_STORAGE_ACCOUNT", "a"), ("AZURE_STORAGE_KEY", "c2VjcmV0")], &[], "");
    let builder = access.azure(&address("az://c/k"), &named).unwrap();
    assert_eq!(all.map(|key| value(&builder, key)), ["a", "c2VjcmV0", "", "false"]);
    builder.build().unwrap();
}

#[test]
fn user_info_becomes_a_header_and_is_not_sent_otherwise() {
    let header = |text: &str| basic(address(text).url().unwrap()).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("https://h/x"), None);
    // "me:se cret/%zz"
    assert_eq!(header("https://me:se%20cret%2F%zz@h/x").unwrap(), format!("Basic {}", BASE64_STANDARD.encode("me:se cret/%zz")));
    assert_eq!(header("https://token@h/x").unwrap(), format!("Basic {}", BASE64_STANDARD.encode("token:")));
    assert_eq!(header("https://:x@h/x").unwrap(), format!("Basic {}", BASE64_STANDARD.encode(":x")));
    assert!(basic(address("https://u:p@h/x").url().unwrap()).unwrap().is_sensitive());
}

#[test]
fn options_that_are_for_another_store_are_refused() {
    let plain = with(&KEYS, &[], "").1;
    let open = |access: &Access, text: &str| access.open_in(&address(text), &plain).map(|opened| opened.key.to_string());
    let headers = Access { headers: Some("/none".into()), ..Access::default() };
    assert!(open(&headers, "s3://b/k").unwrap_err().contains("headers= is for http"));
    assert!(open(&headers, "https://h/k").unwrap_err().contains("the headers file /none"));
    let endpoint = Access { endpoint: Some("http://x".into()), ..Access::default() };
    assert!(open(&endpoint, "https://h/k").unwrap_err().contains("object stores"));
    assert_eq!(open(&endpoint, "s3://b/k/%20").unwrap(), "k/%20");
    assert_eq!(open(&Access::default(), "https://h/k?x").unwrap(), "");
    assert!(Environment::of_process().text(Path::new("/nowhere/at/all")).unwrap().is_none());
}

#[test]
fn stores_elsewhere_have_another_origin() {
    let origin = |url: &str, variables: &[(&str, &str)], endpoint: Option<&str>| {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let access = Access { endpoint: endpoint.map(str::to_owned), ..Access::default() };
        let address = Address::parse(url).unwrap().unwrap();
        access.open_in(&address, &Environment::of(variables, "/none".as_ref())).unwrap().origin
    };
    let one = origin("s3://bucket/key", &[], None);
    assert_ne!(one, origin("s3://bucket/key", &[], Some("http://127.0.0.1:9")));
    assert_ne!(one, origin("s3://bucket/key", &[("AWS_ENDPOINT_URL", "http://127.0.0.1:9")], None));
    let account =
        |name| origin("az://box/key", &[("AZURE_STORAGE_ACCOUNT_NAME", name), ("AZURE_STORAGE_ACCOUNT_KEY", "U0VDUkVU")], None);
    assert_ne!(account("one"), account("other"));
    assert!(!account("one").contains("U0VDUkVU"));
    assert_ne!(origin("https://h/p?id=1", &[], None), origin("https://h/p?id=2", &[], None));
}
