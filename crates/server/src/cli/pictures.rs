//! `tapetum import images`, and `tapetum pipeline run … --keys … --out DIR`: pictures through the drive's programs, as files to look at.

use std::error::Error;
use std::fs;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use tapetum::images::{
    ENDINGS_NAMED, Frame, ImageSet, ImportReport, JpegQuality, PictureFile, PictureFolder, encode_jpeg,
};
use tapetum_kernels::scan::Scalar;
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::{ItemRow, Reply};
use tapetum_service::request::{CreateKeyspace, Request, RunPictures};
use tapetum_service::service::{Access, Service};
use tapetum_service::size;

use super::commands::{KeyspaceTarget, Outcome, filling_options, print};
use super::reach::Reached;
use crate::cli::import_arguments::ImportCommand;
use crate::cli::pipeline_arguments::PicturesArguments;
use crate::tools::key_text::KeyText;
use crate::tools::load::{Existing, Failure as StoringFailure, ServiceSink, Sink, Verdict};

/// Failures that are told one by one.
const FAILURES_TOLD: usize = 10;

pub fn import(ImportCommand::Images { dir, keyspace, store, creation }: &ImportCommand) -> Outcome {
    // Looked at first, so that an error leaves no empty store or keyspace behind.
    let mut folder = PictureFolder::find(dir)?;
    let mut reached = Reached::new(store, &filling_options(store, creation), Access::Write)?;
    let done = make_keyspace(&mut reached.service, keyspace)
        .and_then(|()| put_folder(&mut reached.service, keyspace, &mut folder));
    let report = reached.close(done)?;
    let left_out = match report.left_out.files() {
        0 => String::new(),
        _ => format!("; left out, since pictures are {ENDINGS_NAMED} files: {}", report.left_out),
    };
    let (files, classes, bytes) = (report.files, report.classes, size::shown(report.bytes));
    let done =
        format!("imported {files} pictures of {classes} classes, {bytes}, into the keyspace {keyspace}{left_out}\n");
    print(done.as_bytes())
}

/// Makes the keyspace if there is none.
fn make_keyspace(service: &mut Service, name: &str) -> Outcome {
    match service.gather(Request::Format { keyspace: name.into(), freeze: None }) {
        Err(Failure { kind: FailureKind::UnknownKeyspace, .. }) => {
            let wanted = CreateKeyspace { name: name.into(), is_ordered: false, block_device: None, may_exist: true };
            service.gather(Request::CreateKeyspace(wanted))?;
        }
        found => drop(found?),
    }
    Ok(())
}

fn put_folder(
    service: &mut Service,
    keyspace: &str,
    folder: &mut PictureFolder,
) -> Result<ImportReport, Box<dyn Error>> {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} files, {elapsed}, {eta} left");
    let bar = ProgressBar::new(folder.files.len() as u64);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    // Keys are paths, which nobody asks for through memcached's protocol.
    let mut sink = ServiceSink::new(service, keyspace, true, Existing::Replace);
    let mut report = folder.report();
    let put = put_files(&mut sink, &mut folder.files, |file_bytes| {
        report.files += 1;
        report.bytes += file_bytes;
        bar.set_position(report.files);
    });
    bar.finish_and_clear();
    put?;
    put_set(&mut sink, &folder.set())?;
    Ok(report)
}

/// Puts files; the report hears of each one that was read.
fn put_files(sink: &mut ServiceSink<'_>, files: &mut [PictureFile], mut read: impl FnMut(u64)) -> Outcome {
    let mut verdicts = Vec::new();
    for place in 0..files.len() {
        let value = files[place].read()?;
        read(value.len() as u64);
        let item =
            ItemRow { key: files[place].key.clone().into(), value, flags: files[place].label, ..ItemRow::default() };
        let put = sink.put(place as u64, item, &mut verdicts);
        judge(put, &mut verdicts, |place| files[place as usize].path.display().to_string())?;
    }
    let put = sink.finish(&mut verdicts);
    judge(put, &mut verdicts, |place| files[place as usize].path.display().to_string())
}

/// Writes which pictures there are, behind them.
fn put_set(sink: &mut ServiceSink<'_>, set: &ImageSet) -> Outcome {
    let mut verdicts = Vec::new();
    for (key, value) in set.items() {
        // Whoever reads the last one finds the others.
        let put = sink
            .finish(&mut verdicts)
            .and_then(|()| sink.put(0, ItemRow { key, value, ..ItemRow::default() }, &mut verdicts));
        judge(put, &mut verdicts, |_| "the list of pictures".into())?;
    }
    let put = sink.finish(&mut verdicts);
    judge(put, &mut verdicts, |_| "the list of pictures".into())
}

/// The first thing that was not stored, by its name.
fn judge(put: Result<(), StoringFailure>, verdicts: &mut Vec<(u64, Verdict)>, name: impl Fn(u64) -> String) -> Outcome {
    let bad = verdicts.drain(..).find_map(|(number, verdict)| match verdict {
        Verdict::Bad(why) => Some(format!("{}: {why}", name(number))),
        Verdict::Stored | Verdict::Kept => None,
    });
    bad.map_or(Ok(()), Err)?;
    Ok(put.map_err(|failure| failure.told_of(name))?)
}

/// Runs keys through a pipeline, and writes what comes out as JPEG files.
pub fn run(
    target: KeyspaceTarget<'_>,
    pipeline: &str,
    application: Option<String>,
    asked: &PicturesArguments,
) -> Outcome {
    let Some(out) = &asked.out else { return Err("give the folder for pictures: --out DIR".into()) };
    let mut reached = Reached::for_reading(target.store)?;
    let keys = KeyText::new(reached.format(target.keyspace)?.as_ref());
    let prefixes = asked.keys.iter().map(|prefix| keys.prefix(prefix)).collect::<Result<_, String>>()?;
    let request = RunPictures {
        keyspace: target.keyspace.into(),
        pipeline: pipeline.into(),
        prefixes,
        seed: asked.seed,
        most: asked.most as u64,
        application,
    };
    let mut pictures = Pictures { out, written: 0, failed: Vec::new(), refused: None };
    let done = reached.ask(Request::RunPictures(request), &mut pictures);
    if let Some(refused) = pictures.refused {
        return Err(refused);
    }
    done?;
    print(format!("wrote {} pictures into {}\n", pictures.written, out.display()).as_bytes())?;
    match &pictures.failed[..] {
        [] if pictures.written == 0 => Err(format!("no key begins with {}", asked.keys.join(" or ")).into()),
        [] => Ok(()),
        failed => Err(told(failed).into()),
    }
}

/// Takes pictures, and writes each into a folder.
struct Pictures<'a> {
    out: &'a Path,
    written: u64,
    failed: Vec<String>,
    /// Why no more are taken.
    refused: Option<Box<dyn Error>>,
}

impl Caller for Pictures<'_> {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        match reply {
            Reply::Picture { key, frame } => match write(&frame, self.out, &key) {
                Ok(()) => self.written += 1,
                Err(error) => {
                    self.refused = Some(error);
                    return Err(CallerLeft);
                }
            },
            Reply::NoPicture(why) => self.failed.push(why),
            _ => {}
        }
        Ok(())
    }

    fn row(&mut self, _values: &[Option<Scalar<'_>>]) {}

    fn has_left(&mut self) -> bool {
        false
    }
}

fn write(frame: &[u8], out: &Path, key: &[u8]) -> Outcome {
    let frame = Frame::pixels(frame).map_err(|error| format!("{error}: leave normalize and layout out"))?;
    let name = String::from_utf8_lossy(key).replace('/', "_");
    fs::create_dir_all(out)?;
    Ok(fs::write(out.join(name), encode_jpeg(frame, JpegQuality::default())?)?)
}

fn told(failed: &[String]) -> String {
    format!("{} pictures failed:\n{}", failed.len(), failed[..failed.len().min(FAILURES_TOLD)].join("\n"))
}
