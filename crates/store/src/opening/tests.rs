use super::*;
use crate::ItemPipeline;
use crate::folder::Folder;
use std::fs;
use tapetum_kernels::expiry::Expiry;

fn small() -> Options {
    Options::new().capacity_bytes(64 << 20).memory_bytes(32 << 20)
}

#[test]
fn a_store_is_made_at_a_directory_found_again_and_grows() {
    let folder = Folder::new("opening-made");
    let data = folder.join("a/b");
    let mut notes = Vec::new();
    let store = small().open_noting(&Place::at(&data), |note| notes.push(note)).unwrap();
    assert!(matches!(notes[..], [OpenNote::Made { on_device: false, .. }]), "{notes:?}");
    store.put(b"key", b"value").unwrap();
    let late = Expiry::from_millis(253_402_300_799_999);
    store.put_until(b"brief", b"value", late).unwrap();
    assert_eq!(store.get(b"brief").unwrap().map(|item| item.expiry), Some(late));
    store.put_until(b"brief", b"value", Expiry::from_secs(1)).unwrap();
    assert_eq!(store.get(b"brief").unwrap(), None);
    assert!(matches!(small().open(&data), Err(OpenError::InUse { .. })));
    store.close().unwrap();
    drop(store);
    // The file alone is a place too.
    let store = Store::open_read_only(data.join("drive")).unwrap();
    assert_eq!(store.get(b"key").unwrap().unwrap().value, b"value");
    drop(store);
    notes.clear();
    let more = small().capacity_bytes(80 << 20).write_buffer_bytes(1 << 20);
    let store = more.open_noting(&Place::at(&data), |note| notes.push(note)).unwrap();
    let expected = |note: &OpenNote| matches!(note, OpenNote::Grown { .. } | OpenNote::KeptWriteBuffers { .. });
    assert!(notes.len() == 2 && notes.iter().all(expected), "{notes:?}");
    store.close().unwrap();
    drop(store);
    notes.clear();
    let store = small().open_noting(&Place::at(&data), |note| notes.push(note)).unwrap();
    assert!(matches!(notes[..], [OpenNote::KeptCapacity { .. }]), "{notes:?}");
    assert_eq!(store.get(b"key").unwrap().unwrap().value, b"value");
}

#[test]
fn a_store_of_no_given_size_begins_small_and_grows_as_it_fills() {
    let folder = Folder::new("opening-growing");
    let data = folder.join("data");
    let options = Options::new().sync(Sync::No);
    let store = options.open(&data).unwrap();
    assert!(store.stats().flash_limit_bytes <= 256 << 20);
    // More than it begins with, as fast as it takes them: values in extents of their own, and others.
    let mut random = tapetum_drive::SplitMix64::new(1);
    let mut put = |number: u32, bytes: usize| {
        let value: Vec<u8> =
            std::iter::repeat_with(|| random.next_u64().to_le_bytes()).take(bytes / 8).flatten().collect();
        store.put(&number.to_le_bytes(), &value)
    };
    for number in 0..300 {
        put(number, 1 << 20).unwrap();
    }
    for number in 300..3_000 {
        put(number, 16 << 10).unwrap();
    }
    assert!(store.stats().flash_limit_bytes > 500 << 20, "{}", store.stats().flash_limit_bytes);
    store.close().unwrap();
    drop(store);
    // A store whose size is given does not grow.
    let store = options.clone().capacity_bytes(64 << 20).open(&data).unwrap();
    let has_bytes = store.stats().flash_limit_bytes;
    let random_value = |seed| {
        let mut random = tapetum_drive::SplitMix64::new(seed);
        std::iter::repeat_with(move || random.next_u64().to_le_bytes()).take(1 << 17).flatten().collect::<Vec<u8>>()
    };
    let refused =
        (0..1_000).find_map(|seed| store.put(&(seed as u32 + 10_000).to_le_bytes(), &random_value(seed)).err());
    assert_eq!(refused, Some(Error::FullFlash));
    assert_eq!(store.stats().flash_limit_bytes, has_bytes);
}

#[test]
fn what_is_not_a_store_is_left_alone_and_said() {
    let folder = Folder::new("opening-foreign");
    let nothing = small().create(false).open(folder.join("none"));
    assert!(nothing.err().unwrap().to_string().contains("there is no store at"));
    assert!(!folder.join("none").exists());
    let foreign = folder.join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("notes"), b"mine").unwrap();
    assert!(small().open(&foreign).err().unwrap().to_string().contains("nothing was written"));
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
    let file = folder.join("file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    assert!(matches!(small().open(&file), Err(OpenError::Store { error: Error::Unusable(_), .. })));
    assert_eq!(fs::read(&file).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn too_little_memory_is_refused_with_what_suffices() {
    let folder = Folder::new("opening-memory");
    let greedy = Options { memory_beside: |bytes| bytes / 2, ..small().memory_bytes(20 << 20) };
    let Err(OpenError::Memory { least_bytes, .. }) = greedy.open(folder.join("data")) else { panic!("it fits") };
    let enough = greedy.memory_bytes(least_bytes).open(folder.join("data"));
    enough.unwrap().close().unwrap();
}

#[test]
fn with_compute_units_only_results_of_items_on_flash_come_to_the_host() {
    let folder = Folder::new("opening-units");
    let data = folder.join("data");
    let value = |number: u32| (0..3000).map(|at| (number * 7 + at * at / 3) as u8).collect::<Vec<u8>>();
    let store = small().write_buffer_bytes(64 << 10).open(&data).unwrap();
    for number in 0..200_u32 {
        store.put(&number.to_be_bytes(), &value(number)).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let units = vec![("sha256".to_owned(), 1), ("zstd-compress".to_owned(), 1)];
    let writable = small().compute_units(units.clone()).open(&data).unwrap();
    check_digests(&writable, &value);
    writable.close().unwrap();
    drop(writable);
    check_digests(&small().compute_units(units).open_read_only(&data).unwrap(), &value);
    let unknown = small().compute_units(vec![("gzip".to_owned(), 1)]).open(&data).err().unwrap().to_string();
    assert!(unknown.contains("no program \"gzip\" to give threads"), "{unknown}");
    for name in ["node-get", "match-record"] {
        let refused = small().compute_units(vec![(name.to_owned(), 1)]).open(&data).err().unwrap().to_string();
        assert!(refused.contains(name) && refused.contains("zstd-decompress"), "{refused}");
        assert!(!refused.contains("node-put"), "{refused}");
    }
}

#[test]
fn applications_have_the_weights_that_they_were_given() {
    for units in [vec![("sha256".to_owned(), 1)], Vec::new()] {
        check_weights(&units);
    }
}

fn check_weights(units: &[(String, u16)]) {
    let folder = Folder::new("opening-weights");
    let data = folder.join("store");
    let named = |weights: &[(&str, u32)]| weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect();
    let options = |weights| small().compute_units(units.to_vec()).weights(named(weights));
    let store = options(&[("train", 3), ("default", 2)]).open(&data).unwrap();
    let shares: Vec<_> = store.applications().into_iter().map(|of| (of.name, of.weight)).collect();
    assert_eq!(shares, [("default".to_owned(), 2), ("train".to_owned(), 3)]);
    assert_eq!(store.application("default").unwrap(), crate::Application::default());
    let train = store.application("train").unwrap();
    let unknown = store.application("trian").unwrap_err().to_string();
    assert!(unknown.contains("there are default, train"), "{unknown}");
    store.put(b"key", b"value").unwrap();
    let sha256 = store.drive_identity().programs.iter().find(|program| program.name == "sha256").unwrap().id;
    let pipeline = |application| ItemPipeline {
        stages: vec![(sha256, Vec::new())],
        output_bytes_max: 32,
        application,
        ..ItemPipeline::default()
    };
    for application in [train, train, crate::Application::default()] {
        assert!(store.get_through(b"key", &pipeline(application)).unwrap().is_some());
    }
    let ended: Vec<u64> = store.applications().iter().map(|of| of.pipelines).collect();
    assert_eq!(ended, [1, 2]);
    store.close().unwrap();
    drop(store);
    let refused = |options: Options| options.open(&data).err().unwrap().to_string();
    assert!(refused(options(&[("train", 0)])).contains("give it a weight of 1 to 1024"));
    assert!(refused(options(&[("train", 1), ("train", 2)])).contains("has two weights"));
    assert!(refused(options(&[("", 1)])).contains("no name"));
    let with_threads = refused(small().drive_threads(1).weights(named(&[("train", 1)])));
    assert!(with_threads.contains("give some programs units"), "{with_threads}");
}

fn check_digests(store: &Store, value: &impl Fn(u32) -> Vec<u8>) {
    let drive = &store.hashed().drive;
    let programs = drive.identity().programs;
    let id = |name| programs.iter().find(|program| program.name == name).unwrap().id;
    let stages = ["zstd-compress", "zstd-decompress", "sha256"].map(|name| (id(name), Vec::new())).into();
    let digest = ItemPipeline { stages, output_bytes_max: 32, ..ItemPipeline::default() };
    let mut on_flash = 0;
    for number in 0..200_u32 {
        let mut sha = tapetum_kernels::sha256::Sha256::default();
        sha.update(&value(number));
        let before = drive.counters();
        assert_eq!(store.get_through(&number.to_be_bytes(), &digest).unwrap().unwrap(), sha.finish());
        let after = drive.counters();
        if after.flash_to_local_bytes > before.flash_to_local_bytes {
            on_flash += 1;
            let moved = after.local_to_host_bytes - before.local_to_host_bytes;
            assert!(moved < 32 + 128, "{moved} bytes of a value of 3000");
        }
    }
    assert!(on_flash > 100, "{on_flash}");
    assert!(store.stage_counters().iter().any(|stage| stage.name == "sha256" && stage.tasks >= 200));
}

#[test]
fn sizes_that_cannot_be_are_refused_with_what_can_and_leave_no_folder() {
    let folder = Folder::new("opening-sizes");
    let data = folder.join("new/data");
    let cases = [
        (small().drive_threads(usize::MAX), "give 64 at most"),
        (small().memory_bytes(1 << 50), "1PiB of memory are more than this machine has"),
        (small().tier_bytes(1 << 50), "a DRAM tier of 1PiB and the write buffers"),
        (small().tier_bytes(u64::MAX - 5), "give 16EiB or more, or a smaller tier"),
        (small().node_cache_bytes(u64::MAX), "32MiB of memory are too few"),
        (small().write_buffer_bytes(2 << 30), "give a power of two from 64KiB to 1GiB"),
        (small().capacity_bytes(1), "a capacity of 1 bytes is too small for a store: give 2MiB or more"),
        (small().memory_bytes(1), "1 of memory are too few for the write buffers"),
    ];
    for (options, words) in &cases {
        let error = options.open(&data).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
        assert!(!folder.join("new").exists(), "{words}");
    }
    small().open(&data).unwrap().close().unwrap();
    for (options, words) in &cases[..5] {
        let errors = [options.open(&data).err(), options.open_read_only(&data).err()];
        assert!(errors.iter().flatten().all(|error| error.to_string().contains(words)), "{errors:?}");
        assert_eq!(errors.iter().flatten().count(), 2, "{words}");
    }
}

#[test]
fn an_empty_path_is_said() {
    let errors = [Store::open("").err(), Store::open_read_only("").err(), inspect_at(&Place::at("")).err()];
    for error in errors {
        assert!(error.unwrap().to_string().contains("the store's path is empty"));
    }
}

#[test]
fn a_store_grows_to_four_times_the_capacity_that_it_was_given_and_is_refused_more_memory_than_there_is() {
    let folder = Folder::new("opening-grows");
    let store = small().capacity_bytes(16 << 20).open(folder.join("data")).unwrap();
    store.resize_capacity(64 << 20).unwrap();
    assert_eq!(tapetum_drive::Size(store.stats().flash_limit_bytes).to_string(), "64MiB");
    assert!(store.resize_capacity(65 << 20).unwrap_err().to_string().contains("can grow to 64MiB and not to 65MiB"));
    let refused = store.resize_memory(1 << 50).unwrap_err().to_string();
    assert!(refused.contains("1PiB of memory are more than this machine has"), "{refused}");
}
