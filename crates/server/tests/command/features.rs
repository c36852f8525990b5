//! Stores with features that this version does not know: each command says what to do, and leaves the drive as it is.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use crate::outside::{Folder, succeeded, tapetum};
use tapetum_kernels::checksum::{Salt, checksum};

/// As the superblock is drawn in `crates/base/src/media/superblock.rs`.
const VERSION: u64 = 7;
const COPY_BYTES: usize = 4096;
const CRC_AT: usize = 12;
const INCOMPATIBLE_AT: usize = 16;
const READ_ONLY_COMPATIBLE_AT: usize = 24;

const READERS: &[&[&str]] = &[
    &["get", "key"],
    &["list"],
    &["dump"],
    &["dump", "--skip-bad"],
    &["repair"],
    &["scan", "--keyspace", "ordered"],
    &["stats"],
    &["check"],
    &["inspect"],
    &["inspect", "key"],
    &["inspect", "--map"],
    &["keyspace", "list"],
    &["pipeline", "run", "sha256", "--key", "key"],
];

const WRITERS: &[&[&str]] = &[
    &["put", "key", "other"],
    &["delete", "key"],
    &["load", "/dev/null"],
    &["keyspace", "create", "more"],
    &["keyspace", "drop", "ordered", "--yes"],
    &["keyspace", "rename", "ordered", "other"],
    &["resize", "--capacity", "128MiB"],
    &["serve", "--capacity", "128MiB"],
    &["repair", "--yes"],
];

struct FeatureStore {
    directory: Folder,
}

impl FeatureStore {
    /// One item in each kind of keyspace, closed.
    fn new(name: &str) -> FeatureStore {
        let store = FeatureStore { directory: Folder::new(&format!("features-{name}")) };
        let steps = [
            &["put", "key", "value", "--create", "--capacity", "64MiB"][..],
            &["keyspace", "create", "ordered", "--index", "ordered"],
            &["put", "key", "of ordered", "--keyspace", "ordered"],
        ];
        for words in steps {
            succeeded(store.run(words));
        }
        store
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = tapetum(words);
        command.arg("--data").arg(self.directory.join("data"));
        if words[0] == "serve" {
            command.args(["--memcached", &format!("unix:{}", self.directory.join("socket").display())]);
        }
        command.output().unwrap()
    }

    /// Sets bit 5 of a word of features in both copies of the superblock.
    fn mark(&self, at: usize) {
        let path = self.directory.join("data/drive");
        let mut bytes = fs::read(&path).unwrap();
        for copy in bytes[..2 * COPY_BYTES].chunks_exact_mut(COPY_BYTES) {
            copy[at] |= 1 << 5;
            let salt = Salt { store: 0, address: 0, version: VERSION };
            let crc = checksum(salt, &[&copy[..CRC_AT], &[0; 4], &copy[CRC_AT + 4..]]);
            copy[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        }
        fs::write(path, bytes).unwrap();
    }

    /// Every file of the store's directory, by name.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = fs::read_dir(self.directory.join("data")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        files.sort();
        files
    }

    #[track_caller]
    fn refuses(&self, words: &[&str], parts: [&str; 2]) {
        let output = self.run(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {error}");
        for part in parts.into_iter().chain(["bit 5", "the newer tapetum that made it", "nothing was written"]) {
            assert!(error.contains(part), "{words:?}: {error}");
        }
    }
}

#[test]
fn a_store_with_an_unknown_incompatible_feature_is_refused_by_every_command() {
    let store = FeatureStore::new("incompatible");
    store.mark(INCOMPATIBLE_AT);
    let before = store.files();
    for words in READERS.iter().chain(WRITERS) {
        store.refuses(words, ["features that this tapetum does not know", "incompatible"]);
        assert!(store.files() == before, "{words:?} wrote");
    }
}

#[test]
fn a_store_with_an_unknown_read_only_compatible_feature_is_read_and_not_written_to() {
    let store = FeatureStore::new("read-only");
    store.mark(READ_ONLY_COMPATIBLE_AT);
    let before = store.files();
    for words in READERS {
        let output = store.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(store.files() == before, "{words:?} wrote");
    }
    assert_eq!(store.run(&["get", "key"]).stdout, b"value");
    assert_eq!(store.run(&["scan", "--keyspace", "ordered"]).stdout, b"key\tof ordered\n");
    for words in WRITERS {
        store.refuses(words, ["would spoil by writing", "open it to read"]);
        assert!(store.files() == before, "{words:?} wrote");
    }
}
