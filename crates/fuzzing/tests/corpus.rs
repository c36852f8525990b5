//! Replays `fuzz/corpus`: what the fuzzer found worth keeping, on stable.

use std::path::Path;
use tapetum_fuzzing::TARGETS;

#[test]
fn every_input_of_the_corpora_passes() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for target in TARGETS {
        (target.body)(&[]);
        let folder = corpus.join(target.name);
        let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<_> = files.map(|file| file.expect("a folder that can be read").path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} has no corpus", target.name);
        for file in files {
            // Named before it runs, so that the output of a failure ends with it.
            println!("{}", file.display());
            (target.body)(&std::fs::read(&file).expect("a file that can be read"));
        }
    }
}
