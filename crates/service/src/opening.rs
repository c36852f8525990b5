//! Opens a store for the command line: results of recovery are logged, and errors name the command line's options.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tapetum::{KeyspaceError, KeyspaceState, OpenNote, Options, Place, Store, TierSize};
use tapetum_drive::{Flash, FlashError, Size};

use crate::size;
use crate::suggestion::nearest;

/// Why no store could be opened.
#[derive(Debug)]
pub enum OpenError {
    Store(tapetum::OpenError),
    /// The store has no keyspace of this name; perhaps one with a similar name.
    UnknownKeyspace {
        path: PathBuf,
        name: String,
        near: Option<String>,
    },
    /// The check found damage; each line names its place.
    Damaged {
        path: PathBuf,
        problems: Vec<String>,
    },
}

impl OpenError {
    /// Turns an error of the open store at `path` into this type.
    pub fn of_store(path: PathBuf) -> impl Fn(tapetum::Error) -> OpenError {
        move |error| OpenError::Store(tapetum::OpenError::Store { path: path.clone(), error })
    }

    /// Turns an error of `store`, which is open at `place`, into this type. The store is asked for a similar name.
    pub fn of_open(store: &Store, place: &Place) -> impl Fn(tapetum::Error) -> OpenError {
        move |error| match error {
            tapetum::Error::Keyspace(KeyspaceError::Unknown { name }) => {
                let keyspaces = store.keyspaces();
                let live = keyspaces.iter().filter(|keyspace| keyspace.state == KeyspaceState::Live);
                let names = live.map(|keyspace| &keyspace.name[..]);
                let near = nearest(&name, names).map(str::to_owned);
                OpenError::UnknownKeyspace { path: place.path(), name, near }
            }
            error => OpenError::of_store(place.path())(error),
        }
    }

    /// The error of an open store, if it is one.
    pub fn of_open_store(&self) -> Option<&tapetum::Error> {
        match self {
            OpenError::Store(tapetum::OpenError::Store { error, .. }) => Some(error),
            _ => None,
        }
    }
}

impl From<tapetum::OpenError> for OpenError {
    fn from(error: tapetum::OpenError) -> OpenError {
        OpenError::Store(error)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use tapetum::OpenError as Of;
        let error = match self {
            OpenError::Store(error) => error,
            OpenError::UnknownKeyspace { path, name, near } => {
                return write_unknown_keyspace(f, path, name, near.as_deref());
            }
            OpenError::Damaged { path, problems } => {
                let advice = repair_advice(self);
                return write!(
                    f,
                    "{} is damaged: {}{advice}, and a copy restores it",
                    path.display(),
                    problems.join("; ")
                );
            }
        };
        match error {
            Of::NoStore { path } => write!(
                f,
                "there is no store at {}: give --data or --drive as the server has it; `tapetum serve` makes one, or --create with `tapetum \
                 put`, `load` and `keyspace create`",
                path.display()
            ),
            Of::Foreign { directory, found } => write!(
                f,
                "{} holds no store, but other things ({}): give --data an empty or new directory; nothing was written",
                directory.display(),
                found.display()
            ),
            Of::ForeignUnfinished { path } => write!(
                f,
                "{} is in the way, and is not an unfinished store: move it, or give another --drive; nothing was written",
                path.display()
            ),
            Of::NameTaken { path } => write!(
                f,
                "{} took the name of the new store while that was made, or is a dangling link: look at it, then \
                 start again, or give another --data or --drive; nothing in it was changed",
                path.display()
            ),
            Of::NotBlank { path } => write!(
                f,
                "{} holds no store, but is not blank: give another --drive, or zero its first and last MiB if its contents \
                 are not needed; nothing was written",
                path.display()
            ),
            Of::InUse { path } => write!(
                f,
                "{} is in use, by a running server most likely, and this needs the store for itself: stop the server first",
                path.display()
            ),
            Of::Memory { path, memory_bytes, tier, least_bytes } => {
                write_memory(f, path, *memory_bytes, *tier, *least_bytes)
            }
            Of::NoRoom { .. } => write!(f, "{error} with --data or --drive"),
            Of::Flash(FlashError::NoSpace { .. } | FlashError::TooSmall { .. } | FlashError::FileSizeLimit { .. }) => {
                write!(f, "{error} (--capacity)")
            }
            Of::Store { path, error: tapetum::Error::Keyspace(error) } => write_keyspace(f, path, error),
            Of::Store { error: why, .. } => write!(f, "{error}{}{}", option_to_raise(why), repair_advice(self)),
            _ => write!(f, "{error}"),
        }
    }
}

/// Names the option that gives a full store more room, to be appended to the error.
pub fn option_to_raise(error: &tapetum::Error) -> &'static str {
    match error {
        tapetum::Error::FullFlash | tapetum::Error::FullManifest => " (--capacity)",
        tapetum::Error::FullIndex => " (--memory)",
        _ => "",
    }
}

fn write_keyspace(f: &mut fmt::Formatter<'_>, path: &Path, error: &KeyspaceError) -> fmt::Result {
    if let KeyspaceError::Unknown { name } = error {
        return write_unknown_keyspace(f, path, name, None);
    }
    let path = path.display();
    match error {
        KeyspaceError::TooMany { limit } => write!(
            f,
            "{path} has {limit} keyspaces, dropped ones included whose room has not come back, and takes no more: drop some with \
             `tapetum keyspace drop`, and serve the store for a while"
        ),
        KeyspaceError::Gone => {
            write!(f, "the keyspace was dropped: `tapetum keyspace list` prints those that {path} has")
        }
        KeyspaceError::Ordered => {
            write!(f, "the keyspace is ordered, and its items come in the order of their keys: use `tapetum scan`")
        }
        KeyspaceError::Unordered => write!(
            f,
            "the keyspace is hashed, and its keys have no order: create an ordered one with `tapetum keyspace create NAME --index ordered` \
             for scans, and load its items there; `tapetum list --prefix` has its keys in no order"
        ),
        error => write!(f, "{error}"),
    }
}

fn write_unknown_keyspace(f: &mut fmt::Formatter<'_>, path: &Path, name: &str, near: Option<&str>) -> fmt::Result {
    write!(f, "{} has no keyspace {name:?}: ", path.display())?;
    if let Some(near) = near {
        write!(f, "did you mean {near:?}? ")?;
    }
    write!(f, "`tapetum keyspace list` prints those it has, `tapetum keyspace create` makes one")
}

fn write_memory(
    f: &mut fmt::Formatter<'_>,
    path: &Path,
    memory_bytes: u64,
    tier: TierSize,
    least_bytes: u64,
) -> fmt::Result {
    let (path, memory, least) = (path.display(), size::at_most(memory_bytes), Size::at_least(least_bytes));
    match tier {
        TierSize::Bytes(0) => {
            write!(f, "--memory {memory} is too little for the write buffers of {path}: give {least} or more")
        }
        TierSize::Bytes(tier_bytes) => write!(
            f,
            "--tier {} and the write buffers of {path} do not fit in --memory {memory}: give --memory {least} or more, or a smaller --tier",
            Size(tier_bytes)
        ),
        TierSize::Half => write!(
            f,
            "--memory {memory}, of which --cache gives half to copies in DRAM, is too little for the write buffers of {path}: give --memory \
             {least} or more, or say with --tier how much those copies may take"
        ),
    }
}

impl std::error::Error for OpenError {}

/// Opens the store at `place`, with its maintenance thread.
pub fn open(place: &Place, options: &Options) -> Result<Store, OpenError> {
    Ok(options.open_noting(place, |what| tell(&place.path(), what))?)
}

/// Reopens the store on `flash`, which this process has had open before.
pub fn open_again(place: &Place, flash: Arc<dyn Flash>, options: &Options) -> Result<Store, OpenError> {
    Ok(options.open_again(place, flash, |what| tell(&place.path(), what))?)
}

/// The front doors' part of a memory budget.
pub fn front_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / 10).clamp(2 << 20, 256 << 20)
}

fn tell(path: &Path, what: OpenNote) {
    let path = path.display();
    match what {
        OpenNote::Made { capacity_bytes, on_device } => {
            let on = if on_device { "on" } else { "at" };
            tracing::info!("reserved {} {on} {path} for a new store", size::shown(capacity_bytes));
        }
        OpenNote::Grown { from_bytes, to_bytes } => {
            tracing::info!("{path} has grown from {} to {}", size::shown(from_bytes), size::shown(to_bytes));
        }
        OpenNote::KeptCapacity { has_bytes, wanted_bytes } => {
            let (has, wanted) = (size::shown(has_bytes), size::shown(wanted_bytes));
            tracing::warn!("{path} keeps its {has}: a store does not shrink to a --capacity of {wanted}");
        }
        OpenNote::Members { used } => {
            for (place, (member, bytes)) in (1..).zip(used) {
                tracing::info!("member {place} is {}, of which {} are used", member.display(), size::shown(bytes));
            }
        }
        OpenNote::Degraded { place, left_out } => {
            let why = match left_out {
                Some(left_out) => format!("{} was away while the set changed, and is left out", left_out.display()),
                None => "it is missing".to_string(),
            };
            tracing::warn!("{path} goes on without member {}, and bears no other loss: {why}", place + 1);
        }
        OpenNote::KeptWriteBuffers { has_bytes } => {
            let made = size::shown(has_bytes);
            tracing::warn!(
                "{path} was made with write buffers of {made} and keeps them: --write-buffer is for a new store"
            );
        }
    }
}

/// The command line's advice on damage in a store.
fn repair_advice(error: &OpenError) -> &'static str {
    match error {
        OpenError::Damaged { .. }
        | OpenError::Store(tapetum::OpenError::Store { error: tapetum::Error::Corrupt(_), .. }) => {
            "; `tapetum repair` says what a repair would cost, `tapetum dump --skip-bad` prints what can be read"
        }
        _ => "",
    }
}
