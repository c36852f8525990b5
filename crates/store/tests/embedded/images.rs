//! Pictures: a folder is imported, and batches of it are made by programs of the drive.

use crate::common::folder::Folder;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tapetum::images::{
    BatchRequest, BoundPlan, ImageChance, ImageError, ImagePlan, ImageSet, ImportError, JpegQuality, LoaderOptions,
    PictureBatch, PictureLoader, PictureProblem, SetError, import_folder,
};
use tapetum::{Error, KeyspaceHandle, Options, Store};
use tapetum_kernels::images::testing;

const WAIT: Duration = Duration::from_secs(120);

struct Scratch(Folder);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(Folder::new(&format!("images-{name}")))
    }

    fn file(&self, name: &str, bytes: &[u8]) {
        let path = self.0.join("pictures").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn pictures(&self) -> PathBuf {
        self.0.join("pictures")
    }

    /// Ten pictures of two classes.
    fn with_pictures(self) -> Scratch {
        for number in 0..10 {
            let file =
                testing::jpeg(90 + 7 * number, 80 + 5 * number, JpegQuality { sampling: 2, ..JpegQuality::default() });
            let class = if number % 2 == 0 { "cats" } else { "dogs/large" };
            self.file(&format!("{class}/{number}.jpg"), &file);
        }
        self.file("cats/notes.txt", b"no picture");
        self
    }

    fn store(&self, units: Vec<(String, u16)>) -> Store {
        let options = Options::new().capacity_bytes(64 << 20).memory_bytes(192 << 20).compute_units(units);
        options.open(self.0.join("store")).unwrap()
    }
}

fn loader(keyspace: &KeyspaceHandle, text: &str, threads: usize) -> (Arc<ImageSet>, PictureLoader) {
    let set = Arc::new(ImageSet::load(keyspace, "pictures").unwrap());
    let plan: ImagePlan = text.parse().unwrap();
    let bound = BoundPlan::new(keyspace.store(), &plan).unwrap();
    let loader =
        PictureLoader::start(keyspace, &set, &bound, LoaderOptions { threads, ..LoaderOptions::default() }).unwrap();
    (set, loader)
}

fn request(items: &[u64]) -> BatchRequest {
    BatchRequest { items: items.to_vec(), seed: 1, epoch: 2 }
}

fn next(loader: &PictureLoader) -> PictureBatch {
    loader.next(WAIT).expect("it comes").unwrap()
}

/// A loader that is to have more threads than the drive has memory for has as many as that has memory for.
#[test]
fn a_loader_has_no_more_threads_than_memory_for_them() {
    let scratch = Scratch::new("threads").with_pictures();
    let options = Options::new().capacity_bytes(64 << 20).memory_bytes(64 << 20);
    let store = options.open(scratch.0.join("store")).unwrap();
    let keyspace = store.create_keyspace("pictures").unwrap();
    import_folder(&keyspace, &scratch.pictures(), |_, _| true).unwrap();
    let (_, loader) = loader(&keyspace, "jpeg_decode | resize 64x64 | batch 4", 64);
    (0..256).for_each(|number| loader.submit(request(&[number % 10, 1, 2, 3])));
    for number in 0..256 {
        let batch = next(&loader);
        assert_eq!((&batch.failed[..], batch.items[0]), (&[][..], number % 10));
    }
    let threads = loader.stats().threads;
    assert!((2..64).contains(&threads), "{threads} threads");
}

/// Whoever makes it, a batch is what the operations make of each file.
#[test]
fn batches_are_what_the_operations_make() {
    let scratch = Scratch::new("batches").with_pictures();
    for units in [Vec::new(), vec![("jpeg_decode".into(), 2), ("resize".into(), 1)]] {
        let store = scratch.store(units);
        let keyspace = store.keyspace("pictures").or_else(|_| store.create_keyspace("pictures")).unwrap();
        let report = import_folder(&keyspace, &scratch.pictures(), |_, total| total == 10).unwrap();
        assert_eq!((report.files, report.left_out.files(), report.classes), (10, 1, 2));
        let text = "jpeg_decode | random_resized_crop 32 | flip | batch 4";
        for threads in [1, 3] {
            let (set, loader) = loader(&keyspace, text, threads);
            assert_eq!((set.len(), set.classes()), (10, &["cats".to_owned(), "dogs".to_owned()][..]));
            let sizes: u64 = (0..10).filter_map(|item| set.file_bytes(item)).map(|bytes| bytes as u64).sum();
            assert_eq!(sizes, report.bytes);
            let batches = [&[3, 9, 0, 4][..], &[1, 1, 8], &[5, 6, 7, 2]];
            batches.iter().for_each(|items| loader.submit(request(items)));
            for items in batches {
                let batch = next(&loader);
                let plan: ImagePlan = text.parse().unwrap();
                let mut expected = Vec::new();
                for item in items {
                    let file =
                        fs::read(scratch.pictures().join(String::from_utf8_lossy(set.key(*item as usize)).as_ref()));
                    let chance = ImageChance { seed: 1, epoch: 2, item: *item };
                    let apply = |bytes, planned: &tapetum_kernels::images::PlannedStage| {
                        planned.stage.apply(bytes, chance).unwrap()
                    };
                    expected.extend(plan.stages().iter().fold(file.unwrap(), apply));
                }
                assert!(batch.samples == expected, "{items:?}");
                let labels: Vec<u32> = items.iter().map(|item| u32::from(*item >= 5)).collect();
                assert_eq!((batch.labels, batch.items, batch.failed.len()), (labels, items.to_vec(), 0));
            }
            assert!(loader.next(Duration::ZERO).is_none(), "nothing more was asked for");
            assert_eq!((loader.stats().batches, loader.stats().pictures, loader.pending()), (3, 11, 0));
        }
        let stages = store.stage_counters();
        let tasks = |name| stages.iter().find(|stage| stage.name == name).unwrap().tasks;
        assert!(tasks("jpeg_decode") >= 22 && tasks("batch") >= 22, "the drive ran them");
        store.close().unwrap();
    }
}

#[test]
fn pictures_that_fail_are_named_and_others_come() {
    let scratch = Scratch::new("failures").with_pictures();
    scratch.file("cats/a.jpg", b"\x89PNG\r\n\x1a\n and so on");
    scratch.file("cats/b.JPEG", b"");
    let store = scratch.store(Vec::new());
    let keyspace = store.create_keyspace("pictures").unwrap();
    import_folder(&keyspace, &scratch.pictures(), |_, _| true).unwrap();
    keyspace.delete(b"cats/0.jpg").unwrap();
    let (set, loader) = loader(&keyspace, "jpeg_decode | resize 16x16 | batch 6", 1);
    loader.submit(request(&[0, 1, 2, 3, 4, 5, 6]));
    let batch = next(&loader);
    let told: Vec<String> = batch.failed.iter().map(|(_, error)| error.to_string()).collect();
    assert_eq!(set.len(), 12);
    assert_eq!(batch.failed[0].1.problem, PictureProblem::Missing);
    assert!(told[1].starts_with("cats/a.jpg: stage 0, jpeg_decode: the file is a PNG"), "{}", told[1]);
    assert!(told[2].starts_with("cats/b.JPEG: stage 0, jpeg_decode: the value is empty"), "{}", told[2]);
    assert_eq!(told.len(), 3);
    let whole = batch.clone().without_failed();
    assert_eq!((whole.items.len(), whole.samples.len(), whole.failed.len()), (4, 4 * 16 * 16 * 3, 0));
    let row = batch.items.iter().position(|item| *item == whole.items[0]).unwrap();
    assert_eq!(whole.samples[..768], batch.samples[row * 768..][..768]);
    loader.submit(request(&[12]));
    assert!(matches!(loader.next(WAIT), Some(Err(Error::Options(_)))));
}

#[test]
fn a_set_is_there_when_all_of_it_is() {
    let scratch = Scratch::new("sets").with_pictures();
    let store = scratch.store(Vec::new());
    let keyspace = store.create_keyspace("pictures").unwrap();
    let none = SetError::None { keyspace: "pictures".into() };
    assert_eq!(ImageSet::load(&keyspace, "pictures"), Err(none.clone()));
    let stopped = import_folder(&keyspace, &scratch.pictures(), |report, _| report.files < 3);
    assert!(matches!(stopped, Err(ImportError::Store(Error::Options(_)))));
    assert_eq!(ImageSet::load(&keyspace, "pictures"), Err(none));
    let nothing = import_folder(&keyspace, &scratch.pictures().join("none"), |_, _| true);
    assert!(matches!(nothing, Err(ImportError::Read { .. })));
    import_folder(&keyspace, &scratch.pictures(), |_, _| true).unwrap();
    let mut many = ImageSet::new(vec!["one".into()]);
    (0..10_000).for_each(|number| many.push(format!("{number}").as_bytes(), 0, number));
    many.save(&keyspace).unwrap();
    assert_eq!(ImageSet::load(&keyspace, "pictures"), Ok(many));
}

#[test]
fn a_loader_that_is_dropped_leaves_no_work() {
    let scratch = Scratch::new("dropped").with_pictures();
    let store = scratch.store(Vec::new());
    let keyspace = store.create_keyspace("pictures").unwrap();
    import_folder(&keyspace, &scratch.pictures(), |_, _| true).unwrap();
    let (_, loader) = loader(&keyspace, "resnet50 | batch 8", 2);
    (0..100).for_each(|_| loader.submit(request(&[0, 1, 2, 3, 4, 5, 6, 7])));
    let first = next(&loader);
    assert_eq!(first.samples.len(), 8 * 224 * 224 * 3);
    drop(loader);
    store.close().unwrap();
}

#[test]
fn one_picture_of_any_size_comes_whole() {
    let scratch = Scratch::new("one");
    scratch.file("big.jpg", &testing::jpeg(1200, 900, JpegQuality::default()));
    let store = scratch.store(Vec::new());
    let keyspace = store.create_keyspace("pictures").unwrap();
    import_folder(&keyspace, &scratch.pictures(), |_, _| true).unwrap();
    let bound = |text: &str| BoundPlan::new(&store, &text.parse().unwrap()).unwrap();
    let whole = bound("jpeg_decode").run(&keyspace, b"big.jpg", ImageChance::default()).unwrap();
    assert_eq!(whole.len(), 16 + 1200 * 900 * 3);
    let small = bound("jpeg_decode | resize 8x8 | batch 1");
    assert_eq!(small.run(&keyspace, b"big.jpg", ImageChance::default()).unwrap().len(), 192);
    let missing = small.run(&keyspace, b"none", ImageChance::default()).unwrap_err();
    assert_eq!(missing.to_string(), "none: there is no such key: import the folder again");
    let error = bound("jpeg_decode | center_crop 2000").run(&keyspace, b"big.jpg", ImageChance::default()).unwrap_err();
    assert!(error.to_string().starts_with("big.jpg: stage 1, center_crop: the picture is smaller"), "{error}");
}

/// Whoever has the same drive's units for its pictures is counted apart.
#[test]
fn loaders_count_for_their_applications() {
    let scratch = Scratch::new("applications").with_pictures();
    let options = Options::new().capacity_bytes(64 << 20).memory_bytes(192 << 20);
    let options = options.compute_units(vec![("jpeg_decode".into(), 1)]).weights(vec![("train".into(), 2)]);
    let store = options.open(scratch.0.join("store")).unwrap();
    let keyspace = store.create_keyspace("pictures").unwrap();
    import_folder(&keyspace, &scratch.pictures(), |_, _| true).unwrap();
    let set = Arc::new(ImageSet::load(&keyspace, "pictures").unwrap());
    let plan: ImagePlan = "jpeg_decode | resize 16x16 | batch 5".parse().unwrap();
    let bound = BoundPlan::new(&store, &plan).unwrap();
    let start = |bound| PictureLoader::start(&keyspace, &set, &bound, LoaderOptions::default()).unwrap();
    let loaders = [start(bound.clone()), start(bound.of_application(store.application("train").unwrap()))];
    for (loader, batches) in loaders.iter().zip([1, 2]) {
        (0..batches).for_each(|_| loader.submit(request(&[0, 1, 2, 3, 4])));
        (0..batches).for_each(|_| assert_eq!(next(loader).failed, []));
    }
    let ended: Vec<_> = store.applications().into_iter().map(|of| (of.name, of.weight, of.pipelines)).collect();
    assert_eq!(ended, [("default".to_owned(), 1, 5), ("train".to_owned(), 2, 10)]);
    drop(loaders);
    store.close().unwrap();
}

/// The decode of a picture that takes longer than it may is that picture's error alone. The deadline is one that no decode keeps: the first
/// of its checks comes after a millisecond of work at least.
#[test]
fn a_picture_that_takes_too_long_is_named_and_others_come() {
    let scratch = Scratch::new("deadline").with_pictures();
    let bomb = testing::scan_bomb(500, 400, 60);
    scratch.file("cats/bomb.jpg", &bomb);
    let store = scratch.store(Vec::new());
    let keyspace = store.create_keyspace("pictures").unwrap();
    import_folder(&keyspace, &scratch.pictures(), |_, _| true).unwrap();
    let (set, loader) = loader(&keyspace, "jpeg_decode deadline=0.001 | resize 16x16 | batch 3", 1);
    let place = (0..set.len()).find(|item| set.key(*item) == b"cats/bomb.jpg").unwrap() as u64;
    loader.submit(request(&[0, place, 1]));
    let batch = next(&loader);
    let [(1, error)] = &batch.failed[..] else { panic!("{:?}", batch.failed) };
    assert_eq!(error.image_error(), Some(ImageError::TooLong));
    let told = error.to_string();
    assert!(told.starts_with("cats/bomb.jpg: stage 0, jpeg_decode: the decode did not end by its deadline"), "{told}");
}
