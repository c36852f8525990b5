//! Making a store: in a file that has another name until it is whole, or on a blank block device.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::place::{self, Place};
use super::{
    CAPACITY_GROWING_BYTES, CAPACITY_LEAST_BYTES, CAPACITY_SERVED_BYTES, NewStore, OpenError, OpenNote, Options,
    PROBE_BYTES, drive, holds_store, members, store_bytes, when_free,
};
use crate::api::store::Store;
use crate::hashed::resize::refuse_more_than_there_is;
use tapetum_base::options::StoreOptions;
use tapetum_drive::{AttachedFlash, Attaching, Env, FileClaim, FileFlash, Flash, FlashError, IoEngine, unfinished};

/// Makes the store under another name, and gives it its own when it is whole. `None` if somebody else has made it meanwhile.
///
/// The holder of the lock of the file under the other name is the only one that makes a store here, so every decision is made under that lock.
pub(super) fn create_file(
    place: &Place,
    options: &Options,
    env: &Env,
    note: &mut impl FnMut(OpenNote),
) -> Result<Option<Arc<dyn Flash>>, OpenError> {
    let path = &place.path();
    options.check_new().map_err(OpenError::store(path))?;
    let made = make_file(
        place,
        env,
        |path| Ok(store_bytes(capacity(path, options)?)),
        |flash| create_on(flash, path, options, env).map(|()| Arc::clone(flash)),
    )?;
    let Some(flash) = made else { return Ok(None) };
    note(OpenNote::Made { capacity_bytes: flash.capacity_bytes(), on_device: false });
    Ok(Some(flash))
}

/// As [`create_file`], of so many bytes, with what `make` puts there.
pub(super) fn make_file<T, E: From<OpenError>>(
    place: &Place,
    env: &Env,
    capacity_bytes: impl FnOnce(&Path) -> Result<u64, OpenError>,
    make: impl FnOnce(&Arc<dyn Flash>) -> Result<T, E>,
) -> Result<Option<T>, E> {
    let path = &place.path();
    let is_alone = match place {
        Place::Directory(directory) => {
            place::make_directory(directory)?;
            true
        }
        Place::Partition { .. } | Place::Members(_) => return Err(OpenError::NoFile { path: path.into() }.into()),
        Place::Drive(_) => {
            let folder = unfinished::folder_of(path);
            if !folder.is_dir() {
                return Err(OpenError::flash(FlashError::NotFound { path: folder.into() }).into());
            }
            false
        }
    };
    let capacity_bytes = capacity_bytes(path)?;
    let unfinished = unfinished::path_of(path);
    let head = if is_alone { Vec::new() } else { head_of_ours(&unfinished, env)? };
    let claim = when_free(|| FileClaim::take(&unfinished, 0o600)).map_err(|error| match error {
        FlashError::Locked { .. } => OpenError::InUse { path: path.into() },
        other => OpenError::flash(other),
    })?;
    if place::is_there(path)? {
        claim.remove().map_err(OpenError::io(path, "remove the beginnings of"))?;
        return Ok(None);
    }
    if !is_alone && !place::is_empty_or(&head, &place::head_of(claim.file(), &unfinished)?) {
        return Err(OpenError::ForeignUnfinished { path: unfinished }.into());
    }
    let flash = FileFlash::create_in(claim, capacity_bytes, IoEngine::Auto, env).map_err(OpenError::flash)?;
    let flash = Arc::new(flash);
    let made = make(&(Arc::clone(&flash) as Arc<dyn Flash>)).and_then(|made| {
        unfinished::sync_folders_of(path).map_err(OpenError::io(path, "make durable the folders of"))?;
        flash.rename(path).map_err(|error| match error {
            FlashError::AlreadyExists { path } => OpenError::NameTaken { path },
            error => OpenError::flash(error),
        })?;
        Ok(made)
    });
    match made {
        Ok(made) => Ok(Some(made)),
        Err(error) => {
            // The file means nothing. If it stays, the next creation overwrites it.
            let _ = fs::remove_file(&unfinished);
            Err(error)
        }
    }
}

/// Makes the store on all of a blank device, or on as much of it as is asked for.
pub(super) fn create_on_device(
    device: FileFlash,
    path: &Path,
    options: &Options,
    env: &Env,
    note: &mut impl FnMut(OpenNote),
) -> Result<Arc<dyn Flash>, OpenError> {
    options.check_new().map_err(OpenError::store(path))?;
    let capacity_bytes = options.capacity_bytes.map_or(device.capacity_bytes(), store_bytes);
    let flash: Arc<dyn Flash> = Arc::new(device.with_capacity(capacity_bytes).map_err(OpenError::flash)?);
    create_on(&flash, path, options, env)?;
    note(OpenNote::Made { capacity_bytes: flash.capacity_bytes(), on_device: true });
    Ok(flash)
}

/// Attaches the partition of a drive in another process, and makes the store there, if there is none and one is to be made.
pub(super) fn attach(
    (socket, name): (&Path, &str),
    options: &Options,
    env: &Env,
    note: &mut impl FnMut(OpenNote),
) -> Result<Arc<dyn Flash>, OpenError> {
    let path = &socket.join(name);
    options.check_new().map_err(OpenError::store(path))?;
    // Without a number the drive decides.
    let create_bytes = options.create.then(|| options.capacity_bytes.map_or(0, store_bytes));
    let attaching = Attaching { create_bytes, take_over: options.take_over };
    let attached = when_free(|| AttachedFlash::attach(socket, name, attaching, env)).map_err(OpenError::existing)?;
    let attached = Arc::new(attached);
    let flash: Arc<dyn Flash> = attached.clone();
    if attached.was_made() {
        return Ok(flash);
    }
    if !options.create {
        return Err(OpenError::NoStore { path: path.clone() });
    }
    create_on(&flash, path, options, env)?;
    attached.say_made().map_err(OpenError::flash)?;
    note(OpenNote::Made { capacity_bytes: flash.capacity_bytes(), on_device: true });
    Ok(flash)
}

/// Makes a store of so many bytes with what `make` puts into a partition, which is made if it is not there. `None`: a store is there.
pub(super) fn make_in_partition<T, E: From<OpenError>>(
    (socket, name): (&Path, &str),
    capacity_bytes: u64,
    env: &Env,
    make: impl FnOnce(&Arc<dyn Flash>) -> Result<T, E>,
) -> Result<Option<T>, E> {
    let attaching = Attaching { create_bytes: Some(capacity_bytes), take_over: false };
    let attached = when_free(|| AttachedFlash::attach(socket, name, attaching, env)).map_err(OpenError::existing)?;
    if attached.was_made() {
        return Ok(None);
    }
    let attached = Arc::new(attached);
    if attached.capacity_bytes() < capacity_bytes {
        // Another one began a smaller store there.
        attached.grow(capacity_bytes).map_err(OpenError::flash)?;
    }
    let made = make(&(Arc::clone(&attached) as Arc<dyn Flash>))?;
    attached.say_made().map_err(OpenError::flash)?;
    Ok(Some(made))
}

/// Bytes of a new store: as told, or a part of what is free.
pub(super) fn capacity(path: &Path, options: &Options) -> Result<u64, OpenError> {
    if let Some(bytes) = options.capacity_bytes {
        return Ok(bytes);
    }
    let free = unfinished::free_bytes(unfinished::folder_of(path));
    let free_bytes = free.map_err(OpenError::io(path, "look at the free space of"))?;
    match free_bytes / 2 {
        ..CAPACITY_LEAST_BYTES => Err(OpenError::NoRoom { path: path.into(), free_bytes }),
        half_bytes => Ok(match options.new_store {
            NewStore::Growing => CAPACITY_GROWING_BYTES,
            NewStore::Served => CAPACITY_SERVED_BYTES,
        }
        .min(half_bytes)),
    }
}

/// Reads the beginning of the file under the other name. The leftover of an interrupted creation begins with zeros, or is a store that only lacks its
/// name. Anything else is an error, because anything may lie beside a file that is given by name.
fn head_of_ours(path: &Path, env: &Env) -> Result<Vec<u8>, OpenError> {
    let head = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => place::head_of(&other.map_err(OpenError::io(path, "open"))?, path)?,
    };
    let holds_ours = || match FileFlash::open(path, IoEngine::Blocking, env) {
        Ok(flash) => {
            let flash: Arc<dyn Flash> = Arc::new(flash);
            Ok(members::is_unfinished(&flash, path, env) || holds_store(&flash, path, env)?)
        }
        Err(error @ FlashError::Locked { .. }) => Err(OpenError::flash(error)),
        Err(_) => Ok(false),
    };
    match place::is_empty_or(&[], &head) || holds_ours()? {
        true => Ok(head),
        false => Err(OpenError::ForeignUnfinished { path: path.into() }),
    }
}

/// Makes the store on this flash.
pub(super) fn create_on(flash: &Arc<dyn Flash>, path: &Path, options: &Options, env: &Env) -> Result<(), OpenError> {
    let made = options.of_store(flash.capacity_bytes(), options.memory_bytes.unwrap_or(Options::MEMORY_DEFAULT_BYTES));
    let made = StoreOptions { grows: made.grows && options.new_store == NewStore::Growing, ..made };
    options.check_memory(path, &made, made.segment_bytes)?;
    refuse_more_than_there_is(made.memory_bytes).map_err(OpenError::store(path))?;
    let drive = drive(flash, 4 * PROBE_BYTES, path, env)?;
    Store::create_on(&drive, &made).map_err(OpenError::store(path))
}
