use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// A folder that goes with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tapetum-{name}-{}", std::process::id()));
        // Left by an earlier process of the same number, if at all.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If it cannot be removed, it stays in the temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
