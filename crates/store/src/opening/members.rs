//! A set of files or block devices that are one store's drive: made, and found again by their labels.
//!
//! Making: each member gets a label that says "being made"; the store is made on all of them; then the labels say that the set is there, the first
//! member's last. So a set whose first member does not say so holds nothing, and is made again.
//!
//! Opening: the labels say which members belong together and in which order, whatever the order in which they are given.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::member_error::MemberError;
use super::place::{self, Place};
use super::redundant_members::{self, Given, Opening};
use super::{OpenError, OpenNote, Options, PROBE_BYTES, creation, drive, holds_store, open_flash, when_free};
use tapetum_base::error::Error;
use tapetum_base::media::io::{Io, run};
use tapetum_base::media::member_label::{
    FoundLabel, HEAD_BYTES, LABEL_BYTES, MEMBERS_MAX, MemberLabel, RedundantPart, read_label,
};
use tapetum_drive::{Env, FileFlash, Flash, IoEngine, SetFlash, SetMember, Shape, Size, member_bytes};

/// How members are opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Alone,
    ToRead,
}

/// What was found at a path.
enum Found {
    Absent,
    /// An empty block device.
    Blank(Arc<dyn Flash>),
    Member(Arc<dyn Flash>, MemberLabel),
}

/// Opens a set that is there.
pub(super) fn open(paths: &[PathBuf], how: How, env: &Env) -> Result<Arc<dyn Flash>, OpenError> {
    let found = find(paths, how, env)?;
    match is_made(&found) {
        true => {
            let how = Opening { writes: how == How::Alone, by_force: false };
            compose(paths, found, how, env, &mut |_| {})
        }
        false => Err(OpenError::NoStore { path: paths[0].clone() }),
    }
}

/// Opens a set, and makes it where nothing is at any of the paths, or one that was not finished.
pub(super) fn open_or_make(
    paths: &[PathBuf],
    options: &Options,
    env: &Env,
    note: &mut impl FnMut(OpenNote),
) -> Result<Arc<dyn Flash>, OpenError> {
    let found = find(paths, How::Alone, env)?;
    let set = match (is_made(&found), options.create) {
        (true, _) => {
            let how = Opening { writes: true, by_force: options.force };
            compose(paths, found, how, env, note)?
        }
        (false, true) => make(paths, found, options, env, note)?,
        (false, false) => return Err(OpenError::NoStore { path: paths[0].clone() }),
    };
    Ok(set)
}

/// The error of a drive that was given alone, and is a member of a set; `None` if it is none.
pub(super) fn alone(flash: &Arc<dyn Flash>, path: &Path, env: &Env) -> Option<OpenError> {
    match label_of(flash, path, env) {
        Ok(FoundLabel::Label(label)) => Some(OpenError::member(path, MemberError::Alone { members: label.members })),
        _ => None,
    }
}

/// Whether it has the label of a set that is being made.
pub(super) fn is_unfinished(flash: &Arc<dyn Flash>, path: &Path, env: &Env) -> bool {
    matches!(label_of(flash, path, env), Ok(FoundLabel::Label(MemberLabel { generation: 0, .. })))
}

fn find(paths: &[PathBuf], how: How, env: &Env) -> Result<Vec<Found>, OpenError> {
    if paths.len() > MEMBERS_MAX {
        return Err(OpenError::member(&paths[0], MemberError::TooMany { given: paths.len() }));
    }
    refuse_one_given_twice(paths)?;
    paths.iter().map(|path| find_one(path, how, env)).collect()
}

fn find_one(path: &Path, how: How, env: &Env) -> Result<Found, OpenError> {
    if path.as_os_str().is_empty() {
        return Err(OpenError::NoPath);
    }
    if matches!(Place::on_drive(path), Place::Partition { .. }) {
        return Err(OpenError::member(path, MemberError::Partition));
    }
    let Some(kind) = place::kind(path)? else { return Ok(Found::Absent) };
    let flash: Arc<dyn Flash> = match how {
        How::Alone => Arc::new(open_flash(path, env)?),
        How::ToRead => {
            let opened = when_free(|| FileFlash::open_read_only(path, IoEngine::Auto, env));
            Arc::new(opened.map_err(OpenError::existing)?)
        }
    };
    match label_of(&flash, path, env)? {
        FoundLabel::Label(label) => Ok(Found::Member(flash, label)),
        FoundLabel::Newer(version) => Err(OpenError::member(path, MemberError::Newer { version })),
        FoundLabel::None if kind.is_block_device() && place::is_blank(path)? => Ok(Found::Blank(flash)),
        FoundLabel::None if holds_store(&flash, path, env)? => Err(OpenError::member(path, MemberError::StoreAlone)),
        FoundLabel::None => Err(OpenError::member(path, MemberError::NoMember)),
    }
}

/// An error if two paths lead to one file or device.
fn refuse_one_given_twice(paths: &[PathBuf]) -> Result<(), OpenError> {
    let identity = |path: &PathBuf| match fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => (0, found.rdev(), PathBuf::new()),
        Ok(found) => (found.dev(), found.ino(), PathBuf::new()),
        // It is not there yet.
        Err(_) => (0, 0, std::path::absolute(path).unwrap_or_else(|_| path.clone())),
    };
    let identities: Vec<_> = paths.iter().map(identity).collect();
    for (place, own) in identities.iter().enumerate() {
        if let Some(first) = identities[..place].iter().position(|other| other == own) {
            return Err(OpenError::member(&paths[place], MemberError::Twice { other: paths[first].clone() }));
        }
    }
    Ok(())
}

/// Whether one of them says that its set is there. While a set is being made, its first member does not.
fn is_made(found: &[Found]) -> bool {
    let labels = || found.iter().filter_map(Found::label);
    let unfinished = |set: u128| labels().any(|label| label.set_id == set && label.place == 0 && label.generation == 0);
    labels().any(|label| label.generation > 0 && !unfinished(label.set_id))
}

impl Found {
    fn given((path, found): (&PathBuf, Found)) -> Option<Given> {
        match found {
            Found::Member(flash, label) => Some(Given { path: path.clone(), flash, label }),
            Found::Absent | Found::Blank(_) => None,
        }
    }

    fn label(&self) -> Option<MemberLabel> {
        match self {
            Found::Member(_, label) => Some(*label),
            Found::Absent | Found::Blank(_) => None,
        }
    }
}

/// The set of members that belong together and are all there, or all that are needed.
fn compose(
    paths: &[PathBuf],
    found: Vec<Found>,
    how: Opening,
    env: &Env,
    note: &mut impl FnMut(OpenNote),
) -> Result<Arc<dyn Flash>, OpenError> {
    let labelled = paths.iter().zip(&found).filter_map(|(path, found)| Some((path, found.label()?)));
    let labels: Vec<(&PathBuf, MemberLabel)> = labelled.collect();
    let (first_path, first) = labels[0];
    let generation = labels.iter().map(|(_, label)| label.generation).max().unwrap_or(0);
    for (number, (path, label)) in labels.iter().enumerate() {
        let refused = |error| Err(OpenError::member(path, error));
        if (label.set_id, label.members) != (first.set_id, first.members) {
            return refused(MemberError::OtherSet { other: first_path.clone() });
        }
        if let Some((other, _)) = labels[..number].iter().find(|(_, other)| other.place == label.place) {
            return refused(MemberError::Copy { other: PathBuf::from(other) });
        }
        if first.redundant.is_none() && (label.generation != generation || label.member_generation != generation) {
            let member_generation = label.member_generation.min(label.generation);
            return refused(MemberError::Stale { member_generation, generation });
        }
    }
    if first.redundant.is_some() {
        let given: Vec<Given> = paths.iter().zip(found).filter_map(Found::given).collect();
        return redundant_members::compose(&given, how, env, note);
    }
    let has = |place: &u16| labels.iter().any(|(_, label)| label.place == *place);
    let missing: Vec<u16> = (0..first.members).filter(|place| !has(place)).collect();
    if !missing.is_empty() {
        // What was given for one of them, and is none.
        let given = paths.iter().zip(&found).find(|(_, found)| found.label().is_none()).map(|(path, _)| path);
        let path = given.unwrap_or(first_path);
        let members = first.members;
        return Err(OpenError::member(
            path,
            MemberError::Missing { places: missing, members, is_given: given.is_some() },
        ));
    }
    if let Some((path, _)) = paths.iter().zip(&found).find(|(_, found)| found.label().is_none()) {
        return Err(OpenError::member(path, MemberError::NotOfSet { members: first.members }));
    }
    let mut members: Vec<(u16, SetMember)> = Vec::new();
    for (path, found) in paths.iter().zip(found) {
        let Found::Member(flash, MemberLabel { place, head_bytes, used_bytes, .. }) = found else {
            unreachable!("each has a label");
        };
        let (has_bytes, needed_bytes) = (flash.capacity_bytes(), head_bytes + used_bytes);
        if has_bytes < needed_bytes {
            return Err(OpenError::member(path, MemberError::CutShort { has_bytes, needed_bytes }));
        }
        members.push((place, SetMember { flash, head_bytes, used_bytes }));
    }
    members.sort_by_key(|(place, _)| *place);
    Ok(Arc::new(SetFlash::new(members.into_iter().map(|(_, member)| member).collect())))
}

/// The bytes that a set of these members must have within this capacity, which their heads are a part of. One with redundancy keeps what it has, unless
/// its files would have to be longer: then more, which no set can have.
pub(super) fn wanted_bytes(flash: &dyn Flash, paths: &[PathBuf], capacity_bytes: u64) -> u64 {
    let share_bytes = share_bytes(capacity_bytes, paths.len()).unwrap_or(0);
    if flash.members().is_empty() {
        return share_bytes * paths.len() as u64;
    }
    let has_bytes = paths.iter().filter_map(|path| fs::metadata(path).ok()).map(|found| found.len()).max();
    match has_bytes {
        // A block device has no length.
        Some(1..) if has_bytes < Some(HEAD_BYTES + share_bytes) => 2 * flash.capacity_bytes(),
        _ => flash.capacity_bytes(),
    }
}

/// What is used of each.
fn share_bytes(capacity_bytes: u64, members: usize) -> Result<u64, Error> {
    let whole_bytes = super::store_bytes(capacity_bytes) / members as u64;
    match whole_bytes.saturating_sub(HEAD_BYTES) / LABEL_BYTES * LABEL_BYTES {
        0 => Err(Error::Options(format!(
            "a capacity of {} is too small for {members} members: give {} or more",
            Size(capacity_bytes),
            Size(4 * HEAD_BYTES * members as u64)
        ))),
        bytes => Ok(bytes),
    }
}

/// Of blank devices: what the smallest has.
fn smallest_share(found: &[Found]) -> u64 {
    let bytes = found.iter().filter_map(|found| match found {
        Found::Blank(flash) => Some(flash.capacity_bytes()),
        Found::Absent | Found::Member(..) => None,
    });
    bytes.min().unwrap_or(0).saturating_sub(HEAD_BYTES) / LABEL_BYTES * LABEL_BYTES
}

fn make(
    paths: &[PathBuf],
    found: Vec<Found>,
    options: &Options,
    env: &Env,
    note: &mut impl FnMut(OpenNote),
) -> Result<Arc<dyn Flash>, OpenError> {
    let first = &paths[0];
    options.check_new().map_err(OpenError::store(first))?;
    let members = paths.len() as u16;
    let set_id = u128::from(env.random_u64()) << 64 | u128::from(env.random_u64());
    let share_bytes = match options.capacity_bytes {
        None if found.iter().all(|found| matches!(found, Found::Blank(_))) => None,
        _ => Some(share_bytes(creation::capacity(first, options)?, paths.len()).map_err(OpenError::store(first))?),
    };
    let (share_bytes, redundant, write_buffer_bytes) = match options.redundancy {
        None => (share_bytes, None, options.write_buffer_bytes),
        Some(redundancy) => {
            let share_bytes = share_bytes.unwrap_or_else(|| smallest_share(&found));
            let shape = redundant_members::shape(redundancy, paths.len(), share_bytes, options);
            let (shape, write_buffer_bytes) = shape.map_err(OpenError::store(first))?;
            (Some(share_bytes), Some(shape), Some(write_buffer_bytes))
        }
    };
    let mut set = Vec::new();
    for (place, (path, found)) in (0..).zip(paths.iter().zip(found)) {
        let label =
            |used_bytes| {
                let (generation, member_generation, head_bytes) = (0, 0, HEAD_BYTES);
                let used_bytes = redundant.map_or(used_bytes, |shape| member_bytes(&shape, place.into()));
                let redundant = redundant.map(|Shape { redundancy, own_bytes, extent_bytes, extents, .. }| {
                    RedundantPart { redundancy, own_bytes, extent_bytes, extents, absent: 0 }
                });
                MemberLabel { set_id, place, members, generation, member_generation, head_bytes, used_bytes, redundant }
            };
        let wanted_bytes = share_bytes.map(|bytes| HEAD_BYTES + bytes);
        let (flash, label) = match found {
            Found::Blank(flash) => on_device(flash, path, wanted_bytes, label, env)?,
            Found::Member(flash, _) if place::kind(path)?.is_some_and(|kind| kind.is_block_device()) => {
                on_device(flash, path, wanted_bytes, label, env)?
            }
            Found::Member(flash, _) => {
                // Of a set that was not finished.
                fs::remove_file(path).map_err(OpenError::io(path, "remove the beginnings of"))?;
                drop(flash);
                in_file(path, wanted_bytes, label, env)?
            }
            Found::Absent => in_file(path, wanted_bytes, label, env)?,
        };
        set.push(Given { path: path.clone(), flash, label });
    }
    let member = |Given { flash, label, .. }: &Given| SetMember {
        flash: flash.clone(),
        head_bytes: label.head_bytes,
        used_bytes: label.used_bytes,
    };
    let flash: Arc<dyn Flash> = match redundant {
        None => Arc::new(SetFlash::new(set.iter().map(member).collect())),
        Some(shape) => Arc::new(redundant_members::of_new(shape, &set, env)),
    };
    // It has the size of its members, and keeps it.
    let capacity_bytes = Some(flash.capacity_bytes());
    creation::create_on(&flash, first, &Options { capacity_bytes, write_buffer_bytes, ..options.clone() }, env)?;
    for Given { path, flash, label } in set.iter().rev() {
        write_label(flash, path, &label.in_generation(1, 0), env)?;
    }
    note(OpenNote::Made { capacity_bytes: flash.capacity_bytes(), on_device: false });
    let used = set.iter().map(|Given { path, label, .. }| (path.clone(), label.used_bytes)).collect();
    note(OpenNote::Members { used });
    Ok(flash)
}

/// Labels a blank device, of which so much is used, or all.
fn on_device(
    flash: Arc<dyn Flash>,
    path: &Path,
    wanted_bytes: Option<u64>,
    label: impl Fn(u64) -> MemberLabel,
    env: &Env,
) -> Result<(Arc<dyn Flash>, MemberLabel), OpenError> {
    let (has_bytes, needed_bytes) = (flash.capacity_bytes(), wanted_bytes.unwrap_or(2 * HEAD_BYTES));
    if has_bytes < needed_bytes {
        return Err(OpenError::member(path, MemberError::CutShort { has_bytes, needed_bytes }));
    }
    let used_bytes = (wanted_bytes.unwrap_or(has_bytes) - HEAD_BYTES) / LABEL_BYTES * LABEL_BYTES;
    let label = label(used_bytes);
    write_label(&flash, path, &label, env)?;
    Ok((flash, label))
}

/// Makes a file with a label.
fn in_file(
    path: &Path,
    wanted_bytes: Option<u64>,
    label: impl Fn(u64) -> MemberLabel,
    env: &Env,
) -> Result<(Arc<dyn Flash>, MemberLabel), OpenError> {
    let bytes = wanted_bytes.expect("it is known where there are files");
    let label = label(bytes - HEAD_BYTES);
    let made = creation::make_file(
        &Place::Drive(path.into()),
        env,
        |_| Ok(bytes),
        |flash| write_label(flash, path, &label, env).map(|()| Arc::clone(flash)),
    )?;
    made.map(|flash| (flash, label)).ok_or_else(|| OpenError::NameTaken { path: path.into() })
}

/// The label of a member that is there.
#[cfg(test)]
pub(super) fn label_at(path: &Path, env: &Env) -> MemberLabel {
    match find_one(path, How::ToRead, env).unwrap() {
        Found::Member(_, label) => label,
        Found::Absent | Found::Blank(_) => panic!("{} is no member", path.display()),
    }
}

fn label_of(flash: &Arc<dyn Flash>, path: &Path, env: &Env) -> Result<FoundLabel, OpenError> {
    if flash.capacity_bytes() < 2 * LABEL_BYTES {
        return Ok(FoundLabel::None);
    }
    with_io(flash, path, env, |io| run(io, read_label(io), || false))
}

pub(super) fn write_label(
    flash: &Arc<dyn Flash>,
    path: &Path,
    label: &MemberLabel,
    env: &Env,
) -> Result<(), OpenError> {
    with_io(flash, path, env, |io| run(io, label.write(io), || false))
}

fn with_io<T>(
    flash: &Arc<dyn Flash>,
    path: &Path,
    env: &Env,
    work: impl FnOnce(&Io) -> Option<Result<T, Error>>,
) -> Result<T, OpenError> {
    let drive = drive(flash, PROBE_BYTES, path, env)?;
    let pair = drive.queue_pair(2).map_err(OpenError::io(path, "reach"))?;
    let done = work(&Io::new(pair)).ok_or_else(|| Error::Io("the drive stopped answering".into()));
    done.and_then(|done| done).map_err(OpenError::store(path))
}
