//! The client of S3 that the environment describes.

use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::{BackoffConfig, ClientConfigKey, RetryConfig};
use tokio::time::timeout;

use super::failure::{Failure, root};
use crate::address::BucketAddress;

/// A request ends by the depot's own limits before.
const REQUEST_LONGEST: &str = "1h";
const CONNECTING_LONGEST: &str = "2s";
/// The time in which the machine that the process runs on tells its credentials.
const CREDENTIALS_LONGEST: Duration = Duration::from_secs(5);

/// Makes a client from the environment's AWS_… variables.
///
/// # Errors
/// [`Failure::Insecure`], [`Failure::Setting`], [`Failure::NoCredentials`].
pub fn client(address: &BucketAddress) -> Result<AmazonS3, Failure> {
    // The HTTP client takes the process's provider, and panics if there is none. An earlier depot may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let set = |key| AmazonS3ConfigKey::Client(key);
    // The depot makes requests again by itself: it must know whether one was made before.
    let retry = RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, backoff: BackoffConfig::default() };
    let builder = AmazonS3Builder::from_env()
        .with_bucket_name(address.bucket())
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_disable_bulk_delete(true)
        .with_config(set(ClientConfigKey::Timeout), REQUEST_LONGEST)
        .with_config(set(ClientConfigKey::ConnectTimeout), CONNECTING_LONGEST)
        .with_retry(retry);
    check(&builder)?;
    builder.build().map_err(|error| Failure::Setting(root(&error).to_string()))
}

fn check(builder: &AmazonS3Builder) -> Result<(), Failure> {
    let has = |key| builder.get_config_value(&key).is_some_and(|value| !value.is_empty());
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::S3Endpoint);
    let endpoint = endpoint.or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint)).unwrap_or_default();
    if endpoint.contains('@') {
        return Err(Failure::Setting(
            "AWS_ENDPOINT_URL holds a name or a password: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".into(),
        ));
    }
    let allows_http = builder.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    let allows_http =
        allows_http.is_some_and(|value| matches!(&*value.to_ascii_lowercase(), "true" | "1" | "on" | "yes" | "y"));
    if endpoint.starts_with("http:") && !allows_http {
        return Err(Failure::Insecure);
    }
    match (has(AmazonS3ConfigKey::AccessKeyId), has(AmazonS3ConfigKey::SecretAccessKey)) {
        (true, false) => Err(Failure::NoCredentials("AWS_SECRET_ACCESS_KEY is not set".into())),
        (false, true) => Err(Failure::NoCredentials("AWS_ACCESS_KEY_ID is not set".into())),
        _ => Ok(()),
    }
}

/// Looks whether there are credentials: those of a machine are asked for.
///
/// # Errors
/// [`Failure::NoCredentials`].
pub async fn find_credentials(client: AmazonS3) -> Result<(), Failure> {
    match timeout(CREDENTIALS_LONGEST, client.credentials().get_credential()).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(Failure::NoCredentials("none is set, and this machine has no role that gives any".into())),
    }
}
