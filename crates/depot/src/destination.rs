//! The place of backups as users give it: a folder, or the URL of object storage.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tapetum::backup::{Depot, DepotError, FolderDepot};

use crate::address::BucketAddress;

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Destination {
    Folder(PathBuf),
    Bucket(BucketAddress),
}

/// Why a text is no destination. Does not repeat the text: what looks like a URL may hold a password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DestinationError {
    /// A URL of something else than object storage.
    Scheme,
    /// The part behind `s3://` is no address.
    Address,
}

impl fmt::Display for DestinationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DestinationError::Scheme => {
                "of URLs only s3://BUCKET/PREFIX is known, for S3 and servers that speak its protocol: give that, or a folder \
                 (one with such a name as ./NAME)"
            }
            DestinationError::Address => {
                "give s3://BUCKET/PREFIX, of letters, digits and - _ . = alone; the server's address and the credentials are read from the environment \
                 (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), and never from a URL"
            }
        })
    }
}

impl std::error::Error for DestinationError {}

impl Destination {
    /// Parses what a user gave.
    ///
    /// # Errors
    /// [`DestinationError`]: it looks like a URL, and is none that is known.
    pub fn parse(text: &OsStr) -> Result<Destination, DestinationError> {
        let Some(url) = text.to_str().filter(|text| is_url(text)) else {
            return Ok(Destination::Folder(text.into()));
        };
        let rest = url.strip_prefix("s3:").ok_or(DestinationError::Scheme)?;
        let address = rest.strip_prefix("//").and_then(BucketAddress::parse);
        Ok(Destination::Bucket(address.ok_or(DestinationError::Address)?))
    }

    /// The same place for a process with another working directory.
    ///
    /// # Errors
    /// If the working directory is gone.
    pub fn absolute(self) -> io::Result<Destination> {
        Ok(match self {
            Destination::Folder(folder) => Destination::Folder(std::path::absolute(folder)?),
            bucket => bucket,
        })
    }

    /// As [`Destination::parse`] takes it. `None`: a folder with a name that is no text.
    pub fn text(&self) -> Option<String> {
        match self {
            Destination::Folder(folder) => Some(folder.to_str()?.to_owned()),
            Destination::Bucket(address) => Some(address.to_string()),
        }
    }

    /// Opens the depot there, which is to be read: a folder must exist.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub fn open(&self) -> Result<Arc<dyn Depot>, DepotError> {
        match self {
            Destination::Folder(folder) => Ok(Arc::new(FolderDepot::open(folder)?)),
            Destination::Bucket(address) => open_bucket(address),
        }
    }

    /// As [`Destination::open`], and makes the folder if it is not there. A bucket must exist.
    ///
    /// # Errors
    /// If it cannot be reached, or made.
    pub fn make(&self) -> Result<Arc<dyn Depot>, DepotError> {
        match self {
            Destination::Folder(folder) => Ok(Arc::new(FolderDepot::make(folder)?)),
            Destination::Bucket(address) => open_bucket(address),
        }
    }
}

/// Whether a text begins as a URL does: `NAME://`. `s3:` counts as well: somebody forgot the slashes.
fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let is_scheme = |scheme: &str| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    scheme.is_some_and(is_scheme) || text.starts_with("s3:")
}

#[cfg(feature = "object-storage")]
fn open_bucket(address: &BucketAddress) -> Result<Arc<dyn Depot>, DepotError> {
    Ok(Arc::new(crate::object_storage::ObjectDepot::open(address)?))
}

#[cfg(not(feature = "object-storage"))]
fn open_bucket(address: &BucketAddress) -> Result<Arc<dyn Depot>, DepotError> {
    let why =
        "this tapetum was built without object storage: use one that was built with the feature object-storage".into();
    Err(DepotError { doing: format!("open {address}"), why, is_full: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Destination, DestinationError> {
        Destination::parse(OsStr::new(text))
    }

    #[test]
    fn a_destination_is_a_bucket_by_its_scheme_and_a_folder_otherwise() {
        assert!(matches!(parsed("s3://bucket/a"), Ok(Destination::Bucket(_))));
        for folder in ["./backups", "/a:b", "./s3://bucket", "a/b://c", ""] {
            assert_eq!(parsed(folder), Ok(Destination::Folder(folder.into())));
        }
        for (text, error) in [
            ("gs://bucket", DestinationError::Scheme),
            ("https://bucket.example.org/a", DestinationError::Scheme),
            ("s3:bucket", DestinationError::Address),
            ("s3://KEY:open-sesame@bucket", DestinationError::Address),
        ] {
            assert_eq!(parsed(text), Err(error), "{text}");
            assert!(!error.to_string().contains("sesame"));
        }
    }

    #[test]
    fn a_bucket_is_the_same_everywhere_and_a_folder_is_made_absolute() {
        let bucket = parsed("s3://bucket/a/").unwrap();
        assert_eq!(bucket.clone().absolute().unwrap(), bucket);
        assert_eq!(bucket.text().as_deref(), Some("s3://bucket/a"));
        assert!(parsed("here").unwrap().absolute().unwrap().text().unwrap().ends_with("/here"));
    }
}
