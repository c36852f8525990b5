//! `tapetum import images`, and `tapetum pipeline run … --keys … --out DIR`: pictures through the drive's programs, as files to look at.

use std::fs;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use tapetum::images::{
    BoundPlan, Frame, ImageChance, ImagePlan, ImageSet, JpegQuality, PictureError, encode_jpeg, import_folder,
};
use tapetum::{Error, KeyspaceError, KeyspaceHandle};

use super::commands::{Outcome, filling_options, print, with_store};
use crate::cli::import_arguments::ImportCommand;
use crate::cli::pipeline_arguments::PicturesArguments;
use crate::size;
use crate::tools::key_text::KeyText;

pub fn import(ImportCommand::Images { dir, keyspace, store, creation }: &ImportCommand) -> Outcome {
    let options = filling_options(store, creation);
    // No empty store must be left behind.
    fs::read_dir(dir).map_err(|error| format!("cannot read {}: {error}", dir.display()))?;
    with_store(store, options, |opened| {
        let (into, is_new) = match opened.keyspace(keyspace) {
            Err(Error::Keyspace(KeyspaceError::Unknown { .. })) => (opened.create_keyspace(keyspace)?, true),
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
pub fn run(keyspace: &KeyspaceHandle, name: &str, text: &str, arguments: &PicturesArguments) -> Outcome {
    let Some(out) = &arguments.out else { return Err("give the folder for pictures: --out DIR".into()) };
    let plan: ImagePlan = text.parse()?;
    if plan.batch().is_some() {
        return Err("a batch is for training: leave it out, pictures are written one by one".into());
    }
    let bound = BoundPlan::new(keyspace.store(), &plan)?;
    fs::create_dir_all(out)?;
    let set = ImageSet::load(keyspace, name)?;
    let keys = KeyText::of(keyspace)?;
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
