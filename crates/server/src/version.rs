//! The version of this binary, and the build that it is of. Only the binary's own few lines know the build, and hand it over at the start:
//! a commit alone compiles no library anew.

use std::sync::OnceLock;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

static BUILD: OnceLock<&str> = OnceLock::new();

/// Says of which commit the binary is. The first call counts.
pub fn set_build(commit: &'static str) {
    BUILD.get_or_init(|| commit);
}

/// The commit, or `unknown`, as of a build for tests.
pub fn build() -> &'static str {
    BUILD.get().unwrap_or(&"unknown")
}

/// As `tapetum --version` prints it: `0.1.0 (38217fa4)`, or the version alone.
pub fn with_build() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    match BUILD.get() {
        Some(build) => TEXT.get_or_init(|| format!("{VERSION} ({build})")),
        None => VERSION,
    }
}
