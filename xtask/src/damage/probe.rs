//! One damage: done to a file below a store or before it is opened, checked by reading every key that may be concerned, and undone.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tapetum::{Error, KeyspaceKind, StoreOptions, inspect};
use tapetum_drive::{Env, FileFlash, IoEngine};

use super::harm::{Harm, Kind};
use super::history::{History, KEYS, KEYS_ABSENT, name};
use super::running::{Answer, Running, drive};
use super::subject::{Blocks, Region, Subject, blocks, keys_by_segment};
use super::tally::{Moment, Outcome};
use crate::Failure;
use tapetum_bench::random::Random;
use tapetum_kernels::ordered::NodeRef;

/// Keys of other segments that are read beside those concerned.
const OTHERS: u64 = 40;
/// Writes that make a store flush and collect.
const WRITES: u32 = 500;

fn all_keys() -> Vec<u32> {
    (0..KEYS + KEYS_ABSENT).collect()
}

/// The place where damage is done.
pub struct Probe<'a> {
    subject: &'a Subject,
    options: StoreOptions,
    /// A copy of the subject's file: whole between damages.
    copy: Replica,
    /// Another one, open since it was first read.
    reading: Option<Reading>,
}

struct Replica {
    path: PathBuf,
    file: File,
}

impl Replica {
    fn new(subject: &Subject, path: &Path) -> Result<Replica, Failure> {
        std::fs::write(path, &subject.image)?;
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Replica { path: path.to_owned(), file })
    }

    fn open(
        &self,
        options: &StoreOptions,
        kind: KeyspaceKind,
        engine: IoEngine,
        random: &mut Random,
    ) -> Result<Opened, Failure> {
        let flash = FileFlash::open(&self.path, engine, &Env::system())?;
        Ok(Running::open(&drive(Arc::new(flash), random.next_u64())?, options, kind))
    }
}

type Opened = Result<Running, Error>;

struct Reading {
    copy: Replica,
    store: Running,
    image: Vec<u8>,
    blocks: Blocks,
    keys: BTreeMap<u32, Vec<u32>>,
}

impl<'a> Probe<'a> {
    /// Works on a file of its own at `path`.
    pub fn new(subject: &'a Subject, options: StoreOptions, path: &Path) -> Result<Probe<'a>, Failure> {
        Ok(Probe { subject, options, copy: Replica::new(subject, path)?, reading: None })
    }

    /// Damages a block and looks; `None` where nothing of this kind can be done to the region.
    pub fn run(
        &mut self,
        moment: Moment,
        region: Region,
        kind: Kind,
        random: &mut Random,
    ) -> Result<Option<Outcome>, Failure> {
        match moment {
            Moment::Closed => self.closed(region, kind, random),
            Moment::Reading => self.reading(region, kind, random),
            Moment::Writing => self.writing(region, kind, random),
        }
    }

    fn open(&self, random: &mut Random) -> Result<Opened, Failure> {
        self.copy.open(&self.options, self.subject.kind, IoEngine::Blocking, random)
    }

    fn closed(&mut self, region: Region, kind: Kind, random: &mut Random) -> Result<Option<Outcome>, Failure> {
        let subject = self.subject;
        let Some(harm) = Harm::draw(kind, region, &subject.blocks, &subject.image, subject, random) else {
            return Ok(None);
        };
        harm.apply(&self.copy.file)?;
        let outcome = self.open_damaged(&harm, random);
        harm.undo(&self.copy.file)?;
        // The parts that an opening writes.
        self.copy.file.write_all_at(&subject.image[..subject.opened_bytes()], 0)?;
        outcome.map(Some)
    }

    /// Opens the file as it is, reads every key, and reads the place of each part.
    #[cfg(test)]
    pub fn look(&self, random: &mut Random) -> Result<tapetum::Inspection, Failure> {
        let mut store = self.open(random)??;
        Answers::of(&mut store).judge(&self.subject.history)?;
        Ok(inspect(store.store())?)
    }

    fn open_damaged(&self, harm: &Harm, random: &mut Random) -> Result<Outcome, Failure> {
        let mut store = match self.open(random)? {
            Ok(store) => store,
            Err(error) => return refusal(error),
        };
        let answers = Answers::of(&mut store);
        let whole = answers.judge(&self.subject.history);
        let ends_before = |from: &u32| answers.judge_before(&self.subject.history, *from).is_ok();
        match whole {
            Err(_) if self.lost_tails(harm).iter().any(ends_before) => Ok(Outcome::TailLost),
            Err(_) if self.may_be_older(harm, &answers, &self.subject.history) => Ok(Outcome::Older),
            Err(_) if self.lost_last_frame(harm, &answers) => Ok(Outcome::TailLost),
            Err(wrong) => Err(wrong.into()),
            Ok(()) => answers.outcome(store),
        }
    }

    /// The last writes whose log groups are all damaged: with one of them and those behind it, the log is one that ended
    /// earlier. Damage between records may leave the first of them whole.
    fn lost_tails(&self, harm: &Harm) -> Vec<u32> {
        let places = &self.subject.tail.places;
        let sector = |place: u64| place / 512 * 512;
        // The last one ends with its record, which takes no more than this.
        let end = |&(time, place): &(u32, u64)| sector(place + self.subject.history.record_bytes_max(time) + 511);
        let group = |number: usize| {
            sector(places[number].1)..places.get(number + 1).map_or(end(&places[number]), |next| sector(next.1))
        };
        let damaged = (0..places.len()).rev().take_while(|number| harm.reaches(group(*number)));
        damaged.map(|number| places[number].0).collect()
    }

    /// Whether all that is wrong are keys of data nodes that are damaged, as they were some time before.
    fn may_be_older(&self, harm: &Harm, answers: &Answers, history: &History) -> bool {
        if self.subject.kind != KeyspaceKind::Ordered {
            return false;
        }
        let nodes: Vec<NodeRef<'_>> = harm.whole().filter_map(|(_, whole)| NodeRef::look(whole).ok()).collect();
        let was_there = |key: u32| nodes.iter().any(|node| node.covers(&name(key)));
        answers.judge_older(history, was_there)
    }

    /// Whether the manifest's last frame is damaged, which may have named all that was written last.
    fn lost_last_frame(&self, harm: &Harm, answers: &Answers) -> bool {
        self.subject.kind == KeyspaceKind::Ordered
            && harm.reaches(self.subject.last_frame.clone())
            && answers.judge_older(&self.subject.history, |_| true)
    }

    fn reading(&mut self, region: Region, kind: Kind, random: &mut Random) -> Result<Option<Outcome>, Failure> {
        if self.reading.is_none() {
            let mut path = self.copy.path.clone().into_os_string();
            path.push("-reading");
            let copy = Replica::new(self.subject, Path::new(&path))?;
            let mut store = copy.open(&self.options, self.subject.kind, IoEngine::Auto, random)??;
            store.settle();
            let image = std::fs::read(&copy.path)?;
            let (blocks, keys) = (blocks(&inspect(store.store())?, &image), keys_by_segment(store.store())?);
            self.reading = Some(Reading { copy, store, image, blocks, keys });
        }
        let Some(Reading { copy, store, image, blocks, keys }) = &mut self.reading else {
            unreachable!("it was just opened")
        };
        let Some(harm) = Harm::draw(kind, region, blocks, image, self.subject, random) else { return Ok(None) };
        let concerned = concerned(&harm, blocks, keys);
        let others: Vec<u32> = (0..OTHERS).map(|_| random.below(u64::from(KEYS + KEYS_ABSENT)) as u32).collect();
        harm.apply(&copy.file)?;
        let mut answers = Answers::default();
        store.read(&concerned, |key, answer| answers.take(key, answer));
        store.read(&others, |key, answer| answers.take(key, answer));
        let named = check(store)?;
        harm.undo(&copy.file)?;
        answers.judge(&self.subject.history)?;
        if let Some((key, error)) = answers.errors.iter().find(|(key, _)| !concerned.contains(key)) {
            return Err(format!("key {key} lies elsewhere and was answered: {error}").into());
        }
        Ok(Some(match (answers.errors.is_empty(), named) {
            (false, _) => Outcome::Error,
            (true, true) => Outcome::RightAndNamed,
            (true, false) => Outcome::RightUnseen,
        }))
    }

    fn writing(&mut self, region: Region, kind: Kind, random: &mut Random) -> Result<Option<Outcome>, Failure> {
        let outcome = self.write_and_open_again(region, kind, random);
        self.copy.file.write_all_at(&self.subject.image, 0)?;
        outcome
    }

    fn write_and_open_again(
        &self,
        region: Region,
        kind: Kind,
        random: &mut Random,
    ) -> Result<Option<Outcome>, Failure> {
        let mut store = self.open(random)??;
        store.settle();
        let image = std::fs::read(&self.copy.path)?;
        let blocks = blocks(&inspect(store.store())?, &image);
        let Some(harm) = Harm::draw(kind, region, &blocks, &image, self.subject, random) else { return Ok(None) };
        harm.apply(&self.copy.file)?;
        let mut history = self.subject.history.clone();
        let writes: Vec<_> = (0..WRITES).map(|_| (random.below(u64::from(KEYS)) as u32, !random.one_in(4))).collect();
        for error in store.write(&writes, &mut history) {
            if !matches!(error, Error::Corrupt(_) | Error::Poisoned(_)) {
                return Err(format!("a write on damaged flash was answered: {error}").into());
            }
        }
        store.settle();
        let mut answers = Answers::of(&mut store);
        answers.judge(&history)?;
        answers.contents.iter().for_each(|(key, content)| history.settle(*key, *content));
        drop(store);
        let mut store = match self.open(random)? {
            Ok(store) => store,
            Err(error) => return refusal(error).map(Some),
        };
        let mut again = Answers::of(&mut store);
        if let Err(wrong) = again.judge(&history) {
            return match self.may_be_older(&harm, &again, &history) {
                true => Ok(Some(Outcome::Older)),
                false => Err(wrong.into()),
            };
        }
        again.errors.append(&mut answers.errors);
        again.outcome(store).map(Some)
    }
}

/// A refusal must say that the store is damaged; any other error would mislead the user.
fn refusal(error: Error) -> Result<Outcome, Failure> {
    match error {
        Error::Corrupt(_) | Error::Unusable(_) => Ok(Outcome::Refused),
        other => Err(format!("a damaged store was refused with another error: {other}").into()),
    }
}

/// The keys that a read may miss: those of the segments that are harmed.
fn concerned(harm: &Harm, blocks: &Blocks, keys: &BTreeMap<u32, Vec<u32>>) -> Vec<u32> {
    let mut concerned = Vec::new();
    for (region, blocks) in blocks {
        for (_, segment) in blocks.iter().filter(|(block, _)| harm.blocks().any(|harmed| harmed == *block)) {
            match segment {
                Some(segment) => concerned.extend(keys.get(segment).into_iter().flatten()),
                None if [Region::LargeValues, Region::Nodes, Region::Extensions].contains(region) => return all_keys(),
                None => {}
            }
        }
    }
    concerned
}

/// Whether the check of a store names damage.
fn check(store: &mut Running) -> Result<bool, Failure> {
    match store.check() {
        Ok(report) => Ok(!report.problems.is_empty()),
        Err(Error::Corrupt(_) | Error::Poisoned(_)) => Ok(true),
        Err(other) => Err(format!("the check of a damaged store ended with another error: {other}").into()),
    }
}

/// The answers to reads of keys.
#[derive(Default)]
struct Answers {
    contents: Vec<(u32, Option<u32>)>,
    errors: Vec<(u32, Error)>,
    wrong: Option<String>,
}

impl Answers {
    /// Those to every key.
    fn of(store: &mut Running) -> Answers {
        let mut answers = Answers::default();
        store.read(&all_keys(), |key, answer| answers.take(key, answer));
        answers
    }

    fn take(&mut self, key: u32, answer: Answer) {
        match answer {
            Answer::Content(content) => self.contents.push((key, content)),
            Answer::Error(error @ (Error::Corrupt(_) | Error::Poisoned(_))) => self.errors.push((key, error)),
            Answer::Error(other) => self.wrong = Some(format!("key {key} was answered with another error: {other}")),
            Answer::Wrong(wrong) => self.wrong = Some(format!("key {key} was answered with {wrong}")),
        }
    }

    /// An error if an answer differs from the history.
    fn judge(&self, history: &History) -> Result<(), String> {
        self.judge_by(|key, content| history.may_hold(key, content), |key| history.content(key))
    }

    /// As [`Answers::judge`], had the history ended before the write of `time`.
    fn judge_before(&self, history: &History, time: u32) -> Result<(), String> {
        let content = |key| history.content_before(key, time);
        self.judge_by(|key, found| content(key) == found, content)
    }

    /// Whether all keys that differ from the history are ones that `may_be` allows, and hold a value that they had at some time.
    fn judge_older(&self, history: &History, may_be: impl Fn(u32) -> bool) -> bool {
        let may_hold = |key, content| history.may_hold(key, content) || may_be(key) && history.had(key, content);
        self.judge_by(may_hold, |key| history.content(key)).is_ok()
    }

    fn judge_by(
        &self,
        may_hold: impl Fn(u32, Option<u32>) -> bool,
        content: impl Fn(u32) -> Option<u32>,
    ) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        match self.contents.iter().find(|(key, found)| !may_hold(*key, *found)) {
            None => Ok(()),
            Some((key, found)) => {
                Err(format!("key {key} was answered with write {found:?} instead of {:?}", content(*key)))
            }
        }
    }

    fn outcome(&self, mut store: Running) -> Result<Outcome, Failure> {
        Ok(match self.errors.is_empty() {
            false => Outcome::Error,
            true if check(&mut store)? => Outcome::RightAndNamed,
            true => Outcome::RightUnseen,
        })
    }
}
