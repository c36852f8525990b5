//! A path for one test's file, removed when the test ends.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static MADE: AtomicU32 = AtomicU32::new(0);

pub(crate) struct TestPath(PathBuf);

impl TestPath {
    pub(crate) fn new() -> TestPath {
        TestPath::inside(&std::env::temp_dir())
    }

    pub(super) fn inside(folder: &Path) -> TestPath {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        TestPath(folder.join(format!("tapetum-drive-test-{}-{number}", std::process::id())))
    }
}

impl Deref for TestPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
