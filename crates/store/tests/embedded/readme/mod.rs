//! The program of the README, run twice in an empty directory: the second run finds what the first one made.

use super::common::folder::Folder;
use std::process::Command;

mod program {
    include!("program.rs");

    pub fn run() -> Result<(), Box<dyn std::error::Error>> {
        main()
    }
}

const README: &str = include_str!("../../../../../README.md");
const PROGRAM: &str = include_str!("program.rs");

/// Runs in a process of its own, whose directory is the scratch one.
#[test]
#[ignore = "run by the test below"]
fn runs() {
    program::run().unwrap();
}

#[test]
fn the_program_of_the_readme_runs_twice() {
    assert!(README.contains(PROGRAM), "the README has another program than readme/program.rs");
    let folder = Folder::new("readme");
    for run in ["first", "second"] {
        let me = std::env::current_exe().unwrap();
        let ran = Command::new(me)
            .args(["--ignored", "--exact", "readme::runs", "--nocapture"])
            .current_dir(&*folder)
            .output();
        let ran = ran.unwrap();
        let told = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && told.contains("alice has 5 bytes"), "{run} run: {told}");
    }
}
