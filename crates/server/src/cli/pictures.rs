//! `tapetum import images`, and `tapetum pipeline run … --keys … --out DIR`: pictures through the drive's programs, as files to look at.

use std::error::Error;
use std::fs;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use tapetum::images::{
    BoundPlan, Frame, ImageChance, ImagePlan, ImageSet, JpegQuality, PictureError, encode_jpeg, import_folder,
};
use tapetum::{KeyspaceError, KeyspaceHandle, Options, Place, Store};
use tapetum_service::opening::{self, OpenError};

use super::commands::{Outcome, check_memory, filling_options, offline_options, print};
use crate::cli::arguments::StoreArguments;
use crate::cli::import_arguments::ImportCommand;
use crate::cli::pipeline_arguments::PicturesArguments;
use crate::tools::key_text::KeyText;
use tapetum_service::size;

pub fn import(ImportCommand::Images { dir, keyspace, store, creation }: &ImportCommand) -> Outcome {
    let options = filling_options(store, creation);
    // No empty store must be left behind.
    fs::read_dir(dir).map_err(|error| format!("cannot read {}: {error}", dir.display()))?;
    with_store(store, options, |opened| {
        let (into, is_new) = match opened.keyspace(keyspace) {
            Err(tapetum::Error::Keyspace(KeyspaceError::Unknown { .. })) => (opened.create_keyspace(keyspace)?, true),
            found => (found?, false),
        };
        let mut files = 0;
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} files, {elapsed}, {eta} left");
        let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let imported = import_folder(&into, dir, |report, total| {
            bar.set_length(total);
            bar.set_position(report.files);
            files = report.files;
            true
        });
        bar.finish_and_clear();
        if let (Err(error), true, 0) = (&imported, is_new, files) {
            opened.drop_keyspace(keyspace)?;
            return Err(format!("{error}; the keyspace {keyspace}, which was made for this, was dropped again").into());
        }
        let report = imported?;
        let left_out = match report.left_out.files() {
            0 => String::new(),
            _ => format!("; left out, since pictures are .jpg or .jpeg files: {}", report.left_out),
        };
        let (files, classes, bytes) = (report.files, report.classes, size::shown(report.bytes));
        let done = format!(
            "imported {files} pictures of {classes} classes, {bytes}, into the keyspace {keyspace}{left_out}\n"
        );
        print(done.as_bytes())
    })
}

/// Runs keys through a pipeline, and writes what comes out as JPEG files.
pub fn run(store: &StoreArguments, name: &str, text: &str, arguments: &PicturesArguments) -> Outcome {
    read_store(store, |store| run_over(&store.keyspace(name)?, name, text, arguments))
}

fn run_over(keyspace: &KeyspaceHandle, name: &str, text: &str, arguments: &PicturesArguments) -> Outcome {
    let Some(out) = &arguments.out else { return Err("give the folder for pictures: --out DIR".into()) };
    let plan: ImagePlan = text.parse()?;
    if plan.batch().is_some() {
        return Err("a batch is for training: leave it out, pictures are written one by one".into());
    }
    let bound = BoundPlan::new(keyspace.store(), &plan)?;
    fs::create_dir_all(out)?;
    let set = ImageSet::load(keyspace, name)?;
    let keys = KeyText::new(keyspace.format()?.as_ref());
    let wanted = arguments.keys.iter().map(|prefix| keys.prefix(prefix)).collect::<Result<Vec<Vec<u8>>, String>>()?;
    let is_wanted = |key: &[u8]| wanted.iter().any(|prefix| key.starts_with(prefix));
    let (mut written, mut failed) = (0, Vec::new());
    for item in (0..set.len()).filter(|item| is_wanted(set.key(*item))).take(arguments.most) {
        let chance = ImageChance { seed: arguments.seed, epoch: 0, item: item as u64 };
        match bound.run(keyspace, set.key(item), chance) {
            Ok(frame) => {
                write(&frame, out, set.key(item))?;
                written += 1;
            }
            Err(error) => failed.push(error),
        }
    }
    print(format!("wrote {written} pictures into {}\n", out.display()).as_bytes())?;
    match &failed[..] {
        [] if written == 0 => Err(format!("no key begins with {}", arguments.keys.join(" or ")).into()),
        [] => Ok(()),
        failed => Err(told(failed).into()),
    }
}

fn write(frame: &[u8], out: &Path, key: &[u8]) -> Outcome {
    let frame = Frame::pixels(frame).map_err(|error| format!("{error}: leave normalize and layout out"))?;
    let name = String::from_utf8_lossy(key).replace('/', "_");
    Ok(fs::write(out.join(name), encode_jpeg(frame, JpegQuality::default())?)?)
}

fn told(failed: &[PictureError]) -> String {
    let lines: Vec<String> = failed.iter().take(10).map(PictureError::to_string).collect();
    format!("{} pictures failed:\n{}", failed.len(), lines.join("\n"))
}

/// Runs `work` on the store without a server, and closes it.
fn with_store<R>(
    arguments: &StoreArguments,
    options: Options,
    work: impl FnOnce(&Store) -> Result<R, Box<dyn Error>>,
) -> Result<R, Box<dyn Error>> {
    check_memory(arguments.memory)?;
    let place = arguments.place();
    let store = opening::open(&place, &options)?;
    let result = work(&store).map_err(|error| of_store(&place, &store, error));
    let closed = store.close();
    // The first error is the more informative one.
    let result = result?;
    closed.map_err(OpenError::of_store(place.path()))?;
    Ok(result)
}

/// Runs `work` on the store without a server. The store stays unchanged.
fn read_store<R>(
    arguments: &StoreArguments,
    work: impl FnOnce(&Store) -> Result<R, Box<dyn Error>>,
) -> Result<R, Box<dyn Error>> {
    check_memory(arguments.memory)?;
    let place = arguments.place();
    let store = offline_options(arguments).open_read_only(place.clone()).map_err(OpenError::from)?;
    work(&store).map_err(|error| of_store(&place, &store, error))
}

/// The error with the store's path, if it is the store's.
fn of_store(place: &Place, store: &Store, error: Box<dyn Error>) -> Box<dyn Error> {
    match error.downcast::<tapetum::Error>() {
        Ok(error) => OpenError::of_open(store, place)(*error).into(),
        Err(other) => other,
    }
}
