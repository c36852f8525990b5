//! libFuzzer over one of the targets: `FUZZ_TARGET` names it, or is `list`. All are in one binary, so that they are built
//! once.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tapetum_fuzzing::{TARGETS, find};

static BODY: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    if name == "list" {
        TARGETS.iter().for_each(|target| println!("{} {}", target.name, target.length_max));
        std::process::exit(0);
    }
    find(&name).unwrap_or_else(|| panic!("there is no target {name}")).body
});

fuzz_target!(init: { LazyLock::force(&BODY); }, |bytes: &[u8]| BODY(bytes));
