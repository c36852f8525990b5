//! An engine stands on the base alone: it names no other engine, and nothing of what joins them.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(path: PathBuf, into: &mut Vec<PathBuf>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| sources(entry.unwrap().path(), into));
    } else {
        into.push(path);
    }
}

/// A file without its tests, which may use anything.
fn code_of(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let own = ["#[cfg(test)]\nmod ", "#[cfg(test)]\npub mod tests {"].iter().filter_map(|tests| text.find(tests)).min();
    // Modules of tests in files of their own are declared above what follows them.
    let end = own.filter(|at| text[*at..].contains("mod tests {")).unwrap_or(text.len());
    text[..end].to_owned()
}

#[test]
fn an_engine_names_nothing_but_itself_and_the_base() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for engine in ["hashed", "ordered"] {
        let (mut files, mut named) = (Vec::new(), Vec::new());
        sources(root.join(engine), &mut files);
        assert!(files.len() > 50, "the sources are somewhere else");
        for file in files {
            let name = file.strip_prefix(&root).unwrap().to_str().unwrap();
            if name.contains("test") || name.ends_with("store_bench.rs") {
                continue;
            }
            let own = format!("crate::{engine}");
            for line in code_of(&file).lines().filter(|line| !line.trim_start().starts_with("//")) {
                if line.contains("crate::") && line.replace(&own, "").contains("crate::") {
                    named.push(format!("{name}: {line}"));
                }
            }
        }
        assert_eq!(named, Vec::<String>::new(), "what it needs of others belongs to the base, or to `Engine`");
    }
}
