//! Addresses of object storage: `s3://BUCKET/PREFIX`.
//!
//! Names keep to the characters that URLs need no escapes for: nothing of an address has two spellings, and nothing in it can be a password.

use std::fmt;

/// A bucket, and what the names of all objects in it begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketAddress {
    bucket: String,
    /// Without slashes at its ends; empty: the whole bucket.
    prefix: String,
}

impl BucketAddress {
    /// Parses what stands behind `s3://`. `None`: it is no address.
    pub fn parse(rest: &str) -> Option<BucketAddress> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let are_plain = prefix.is_empty() || prefix.split('/').all(is_plain);
        (is_plain(bucket) && are_plain).then(|| BucketAddress { bucket: bucket.into(), prefix: prefix.into() })
    }

    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The key of an object in the bucket.
    pub fn key(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.into() } else { format!("{}/{name}", self.prefix) }
    }
}

impl fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BucketAddress { bucket, prefix } = self;
        let slash = if prefix.is_empty() { "" } else { "/" };
        write!(f, "s3://{bucket}{slash}{prefix}")
    }
}

/// Whether a part of an address is a name of plain characters.
fn is_plain(part: &str) -> bool {
    let are_plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'='));
    are_plain && !matches!(part, "" | "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_as_it_was_given() {
        for (rest, shown, key) in [
            ("bucket", "s3://bucket", "store"),
            ("bucket/", "s3://bucket", "store"),
            ("bucket/a/b=1/", "s3://bucket/a/b=1", "a/b=1/store"),
        ] {
            let address = BucketAddress::parse(rest).unwrap();
            assert_eq!((address.to_string().as_str(), address.key("store").as_str()), (shown, key));
            assert_eq!(address.bucket(), "bucket");
        }
    }

    #[test]
    fn what_could_be_a_password_or_another_name_is_no_address() {
        for rest in
            ["", "/a", "key:secret@bucket/a", "bucket//a", "bucket/../a", "bucket/a?x=1", "bucket/a#b", "bucket/a%20b"]
        {
            assert_eq!(BucketAddress::parse(rest), None, "{rest}");
        }
    }
}
