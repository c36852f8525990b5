use super::members::{How, open};
use super::*;
use crate::folder::Folder;
use std::fs;
use std::os::unix::fs::FileExt;
use tapetum_base::media::member_label::{FoundLabel, HEAD_BYTES, LABEL_BYTES, MemberLabel};

fn small() -> Options {
    Options::new().capacity_bytes(96 << 20).memory_bytes(32 << 20)
}

fn set(paths: &[&Path]) -> Place {
    Place::Members(paths.iter().map(|path| path.to_path_buf()).collect())
}

/// Three paths in a folder, and a store made there of the first so many.
fn made(folder: &Folder, count: usize) -> [PathBuf; 3] {
    let paths = ["a", "b", "c"].map(|name| folder.join(name));
    let store = small().open(Place::on_drives(&paths[..count])).unwrap();
    for number in 0..2000_u32 {
        store.put(&number.to_le_bytes(), &value(number)).unwrap();
    }
    let ordered = store.create_keyspace_of("ordered", tapetum_base::keyspace_kind::KeyspaceKind::Ordered).unwrap();
    ordered.put(b"key", b"value").unwrap();
    store.close().unwrap();
    paths
}

fn value(number: u32) -> Vec<u8> {
    let mut random = tapetum_drive::SplitMix64::new(number.into());
    std::iter::repeat_with(|| random.next_u64().to_le_bytes()).take(1000).flatten().collect()
}

fn has_all(store: &Store) -> bool {
    let ordered = store.keyspace("ordered").unwrap().get(b"key").unwrap().unwrap().value;
    ordered == b"value"
        && (0..2000_u32).all(|number| store.get(&number.to_le_bytes()).unwrap().unwrap().value == value(number))
}

/// What opening these members says.
fn refused(options: &Options, paths: &[&Path]) -> (String, MemberError) {
    match options.open(set(paths)) {
        Err(OpenError::Member { path, error }) => (path.file_name().unwrap().to_string_lossy().into_owned(), error),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opens"),
    }
}

fn label(path: &Path) -> MemberLabel {
    let mut both = vec![0; 2 * LABEL_BYTES as usize];
    fs::File::open(path).unwrap().read_exact_at(&mut both, 0).unwrap();
    let FoundLabel::Label(label) = MemberLabel::read(&both) else { panic!("{} has no label", path.display()) };
    label
}

fn relabel(path: &Path, label: MemberLabel) {
    let file = fs::File::options().write(true).open(path).unwrap();
    [0, LABEL_BYTES].iter().for_each(|at| file.write_all_at(&label.encode(), *at).unwrap());
}

#[test]
fn members_are_one_store_in_whatever_order_and_all_are_used() {
    let folder = Folder::new("members-order");
    let [a, b, c] = made(&folder, 3);
    let store = small().open(set(&[&c, &a, &b])).unwrap();
    assert!(has_all(&store));
    store.close().unwrap();
    drop(store);
    assert!(has_all(&Store::open_read_only(set(&[&b, &c, &a])).unwrap()));
    assert!(inspect_at(&set(&[&b, &c, &a])).is_ok());
    assert!(matches!(
        small().create(false).open(set(&[&folder.join("x"), &folder.join("y")])),
        Err(OpenError::NoStore { .. })
    ));
    // 16 MB of values that do not compress, a part on each.
    for path in [&a, &b, &c] {
        let bytes = fs::read(path).unwrap();
        let used =
            bytes[HEAD_BYTES as usize..].chunks_exact(4096).filter(|page| page.iter().any(|byte| *byte != 0)).count();
        assert!(used > 1000, "{} has {used} pages in use", path.display());
        assert!(bytes[2 * LABEL_BYTES as usize..HEAD_BYTES as usize].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn what_makes_no_set_is_said_and_left_alone() {
    let folder = Folder::new("members-refused");
    let [a, b, c] = made(&folder, 2);
    let alone = small().open(&a).err().unwrap().to_string();
    assert!(alone.contains("one of the 2 members of a set"), "{alone}");
    let before = [&a, &b].map(|path| fs::read(path).unwrap());
    let link = folder.join("link");
    std::os::unix::fs::symlink(&a, &link).unwrap();
    assert_eq!(refused(&small(), &[&a, &link]), ("link".into(), MemberError::Twice { other: a.clone() }));
    assert_eq!(refused(&small(), &[&c, &c]), ("c".into(), MemberError::Twice { other: c.clone() }));
    let missing = |is_given| MemberError::Missing { places: vec![1], members: 2, is_given };
    assert_eq!(refused(&small(), &[&a, &c]), ("c".into(), missing(true)));
    assert!(!c.exists(), "nothing is made beside a set that is there");
    assert_eq!(refused(&small(), &[&a, &b, &c]), ("c".into(), MemberError::NotOfSet { members: 2 }));
    let foreign = folder.join("foreign");
    fs::write(&foreign, vec![7; 1 << 20]).unwrap();
    assert_eq!(refused(&small(), &[&a, &foreign]), ("foreign".into(), MemberError::NoMember));
    small().open(folder.join("store")).unwrap().close().unwrap();
    let store = folder.join("store/drive");
    assert_eq!(refused(&small(), &[&store, &c]), ("drive".into(), MemberError::StoreAlone));
    let other = Folder::new("members-other");
    let [_, of_other, _] = made(&other, 2);
    assert_eq!(refused(&small(), &[&a, &of_other]), ("b".into(), MemberError::OtherSet { other: a.clone() }));
    let copy = folder.join("copy");
    fs::copy(&b, &copy).unwrap();
    assert_eq!(refused(&small(), &[&a, &b, &copy]), ("copy".into(), MemberError::Copy { other: b.clone() }));
    let sock = folder.join("drive.sock");
    assert_eq!(refused(&small(), &[&a, &sock]), ("drive.sock".into(), MemberError::Partition));
    let many: Vec<PathBuf> = (0..17).map(|number| folder.join(format!("m{number}"))).collect();
    let many: Vec<&Path> = many.iter().map(PathBuf::as_path).collect();
    assert_eq!(refused(&small(), &many).1, MemberError::TooMany { given: 17 });
    assert!([&a, &b].map(|path| fs::read(path).unwrap()) == before);
    fs::File::options().write(true).open(&copy).unwrap().set_len(20 << 20).unwrap();
    assert!(matches!(refused(&small(), &[&a, &copy]).1, MemberError::CutShort { .. }));
    // One that was away while the others went on.
    for path in [&a, &b] {
        let generation = 2;
        let member_generation = if path == &a { 2 } else { 1 };
        relabel(path, MemberLabel { generation, member_generation, ..label(path) });
    }
    let stale = MemberError::Stale { member_generation: 1, generation: 2 };
    assert_eq!(refused(&small(), &[&a, &b]), ("b".into(), stale));
}

#[test]
fn a_set_that_was_not_finished_is_made_again_and_one_that_is_there_keeps_its_size() {
    let folder = Folder::new("members-unfinished");
    let [a, b, c] = made(&folder, 3);
    // The first member's label is the last that says that the set is there.
    relabel(&a, MemberLabel { generation: 0, member_generation: 0, ..label(&a) });
    fs::remove_file(&c).unwrap();
    let place = set(&[&a, &b, &c]);
    assert!(matches!(small().create(false).open(place.clone()), Err(OpenError::NoStore { .. })));
    let mut notes = Vec::new();
    let store = small().open_noting(&place, |note| notes.push(note)).unwrap();
    let OpenNote::Members { used } = &notes[1] else { panic!("{notes:?}") };
    assert_eq!(used.iter().map(|(path, _)| path).collect::<Vec<_>>(), [&a, &b, &c]);
    assert_eq!(store.get(&0_u32.to_le_bytes()).unwrap(), None, "it is a new store");
    store.put(b"key", b"value").unwrap();
    store.close().unwrap();
    drop(store);
    let larger = small().capacity_bytes(200 << 20).open(place.clone()).err().unwrap().to_string();
    assert!(larger.contains("keeps its size"), "{larger}");
    let env = Env::system();
    let flash = open(&[c, b, a], How::Alone, &env).unwrap();
    assert_eq!(flash.member_starts().len(), 3);
    drop(flash);
    assert_eq!(small().open(place).unwrap().get(b"key").unwrap().unwrap().value, b"value");
}
