//! Freezes: all keyspaces of a store, of both kinds, as they were at one moment, kept for a time that their owner names.
//!
//! ```text
//! changed nodes written ─► installer taken ─► gate of ordered writers closed ─► all shards held: the moment
//!   ─► nodes walked, their slots held ─► gate opened ─► write buffers copied, segments held ─► installer given back ─► all of it durable
//! ```
//! 1. A freeze shows each write wholly or not at all, and with a write everything that was acknowledged before it began. Those who write to ordered
//!    keyspaces wait from before the moment until all nodes were walked; those who write to hashed ones for the moment alone. Keyspaces are neither
//!    made nor dropped meanwhile, as that takes the installer.
//! 2. What a freeze holds is neither overwritten nor given out. It ends when its owner releases it, when its time is over, when it keeps more flash
//!    from writers than it may, or when writers need what it keeps: the oldest one first ([`list`]). Its readers then learn that it is too old.
//! 3. It is in memory alone, and does not outlive the process.
//!
//! `docs/decisions/freezes.md` says why. Threads: any.

pub mod image;
mod job;
pub mod list;

pub use job::FreezeJob;

use self::image::{StoreImage, TakeImage};
use self::list::FreezeList;
use crate::hashed::HashedEngine;
use crate::hashed::catalog::Catalog;
use crate::hashed::snapshot::{HashedMoment, MomentCopy, Snapshot};
use crate::ordered::engine::OrderedEngine;
use crate::ordered::frozen::{CopyTo, FrozenTree, KeySpan};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tapetum_base::base::Base;
use tapetum_base::debug_as_text;
use tapetum_base::engine::scan_layout::LayoutError;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::catalogue::Keyspace;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::log::{LogCut, Sync};
use tapetum_base::media::io::{Io, lock};

/// How a freeze is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreezeOptions {
    /// The name of its owner, as whoever asks for it gives it.
    pub owner: String,
    /// It ends by itself after so long, unless it is renewed.
    pub lasts: Duration,
    /// Flash that it may keep from writers. `None`: a quarter of the store's capacity.
    pub flash_bytes_max: Option<u64>,
}

impl Default for FreezeOptions {
    fn default() -> FreezeOptions {
        FreezeOptions { owner: "an application".into(), lasts: Duration::from_secs(60), flash_bytes_max: None }
    }
}

/// Why a freeze has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreezeEnd {
    Released,
    /// Its time was over.
    Expired,
    /// It kept more flash than it may, or writers needed what it kept.
    FlashNeeded,
    /// The store was closed.
    Closed,
}

/// Why there is no freeze.
#[derive(Clone, PartialEq)]
pub enum FreezeError {
    Store(Error),
    /// An owner has as many freezes as one may have.
    TooManyOfOwner {
        owner: String,
        limit: usize,
    },
    /// The store has as many as it may have.
    TooMany {
        limit: usize,
    },
    /// It lasts longer than a freeze may, or no time at all.
    Lasts {
        limit: Duration,
    },
    Ended {
        id: u64,
        why: FreezeEnd,
    },
    /// Writers needed the flash before the freeze was made.
    FlashNeeded,
    /// There is no such freeze, nor was there lately.
    Unknown {
        id: u64,
    },
}

impl From<Error> for FreezeError {
    fn from(error: Error) -> FreezeError {
        FreezeError::Store(error)
    }
}

impl fmt::Display for FreezeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreezeError::Store(error) => error.fmt(f),
            FreezeError::TooManyOfOwner { owner, limit } => {
                write!(f, "{owner:?} has {limit} freezes, as many as one owner may have: release one first")
            }
            FreezeError::TooMany { limit } => write!(f, "the store has {limit} freezes, its most: release one first"),
            FreezeError::Lasts { limit } => {
                write!(
                    f,
                    "a freeze lasts at least a millisecond and at most {} hours: renew it later",
                    limit.as_secs() / 3600
                )
            }
            FreezeError::Ended { id, why } => {
                let why = match why {
                    FreezeEnd::Released => "it was released",
                    FreezeEnd::Expired => "its time was over; renew it earlier, or let it last longer",
                    FreezeEnd::FlashNeeded => "writers needed the flash that it kept, or it kept more than it may",
                    FreezeEnd::Closed => "the store was closed",
                };
                write!(f, "freeze {id} has ended: {why}")
            }
            FreezeError::FlashNeeded => {
                f.write_str("the store has no flash for a freeze: delete something, or give the store more capacity")
            }
            FreezeError::Unknown { id } => {
                write!(f, "there is no freeze {id}: it ended long ago, or the store was opened since")
            }
        }
    }
}

impl std::error::Error for FreezeError {}

debug_as_text!(FreezeError);

/// Figures of a freeze.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreezeReport {
    pub id: u64,
    pub owner: String,
    /// The last stamp that it shows.
    pub stamp: u64,
    /// The moment, in milliseconds since 1970.
    pub moment_unix_ms: u64,
    pub age_us: u64,
    /// Until it ends by itself.
    pub left_us: u64,
    /// How long writers of ordered keyspaces waited for it.
    pub pause_us: u64,
    /// Nodes that had changes not on flash, and were copied.
    pub copied_nodes: u64,
    pub keyspaces: usize,
    /// Flash that it keeps from writers, alone or with other freezes.
    pub flash_bytes: u64,
    pub memory_bytes: u64,
}

/// See the [module](self).
pub struct FrozenStore {
    pub id: u64,
    pub owner: String,
    flash_bytes_max: u64,
    begun_us: u64,
    ends_us: AtomicU64,
    pause_us: u64,
    stamp: u64,
    keyspaces: Vec<(Keyspace, KeyspaceRef)>,
    hashed: Arc<HashedMoment>,
    trees: FrozenTrees,
    /// For a backup.
    image: Option<StoreImage>,
    end: Mutex<Option<FreezeEnd>>,
    base: Arc<Base>,
}

type FrozenTrees = BTreeMap<KeyspaceId, Arc<FrozenTree>>;

/// What is copied of all keyspaces within the gate.
struct TakenMoment {
    /// The last stamp that it shows.
    stamp: u64,
    cut: LogCut,
    /// Hashed keyspaces still to be copied.
    copy: MomentCopy,
    trees: Result<FrozenTrees, Error>,
}

/// The moment of all keyspaces, within the gate. The caller has the installer.
fn take_moment(
    hashed: &HashedEngine,
    ordered: &OrderedEngine,
    keyspaces: &[(Keyspace, KeyspaceRef)],
) -> Result<TakenMoment, Error> {
    let of_kind = |kind| {
        let of = keyspaces.iter().filter(move |(keyspace, _)| keyspace.kind == kind);
        of.map(|(keyspace, _)| keyspace.id)
    };
    let (mut stamp, mut marks, mut cut) = (0, Vec::new(), None);
    let gate = ordered.close_gate()?;
    // Deletions of everything take no installer: they are what they are at the moment.
    let amid = || {
        stamp = hashed.base.log.stamp_given();
        cut = Some(hashed.base.log.cut());
        let moment = |id| (id, ordered.moment_now(id));
        marks = of_kind(KeyspaceKind::Ordered).map(moment).collect();
    };
    let copy = MomentCopy::begin(hashed, of_kind(KeyspaceKind::Hashed), amid);
    let whole = KeySpan::default();
    let tree = |(id, moment)| {
        let frozen = ordered.freeze(gate.as_ref(), id, &whole, (moment, CopyTo::Host));
        frozen.map(|tree| tree.map(|tree| (id, tree))).transpose()
    };
    let trees = marks.into_iter().filter_map(tree).collect();
    let cut = cut.expect("the moment has come");
    Ok(TakenMoment { stamp, cut, copy, trees })
}

fn end_us(now_us: u64, lasts: Duration) -> u64 {
    now_us.saturating_add(u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX))
}

/// A keyspace of a freeze, by its engine.
pub enum FrozenPart {
    Hashed(Snapshot),
    /// `None`: nobody had written to it.
    Ordered(Option<Arc<FrozenTree>>),
}

impl FrozenStore {
    /// Freezes the store. Its time begins with the moment. `image` takes what only a backup needs.
    ///
    /// # Errors
    /// If the store has failed, there is no memory for a look at a tree, or writers need the flash at once.
    pub async fn take(
        (hashed, ordered): (&Arc<HashedEngine>, &Arc<OrderedEngine>),
        list: &FreezeList,
        io: &Io,
        options: &FreezeOptions,
        image: TakeImage,
    ) -> Result<FrozenStore, FreezeError> {
        let base = &hashed.base;
        ordered.write_changed(io).await;
        let installer = hashed.take_installer().await;
        let keyspaces = base.keyspaces.list_open();
        let flash_bytes_max = options.flash_bytes_max.unwrap_or(base.capacity_bytes() / 4);
        let began_us = base.drive.env().now_us();
        let TakenMoment { stamp, cut, copy, trees } = take_moment(hashed, ordered, &keyspaces)?;
        base.log.wake();
        let pause_us = base.drive.env().now_us() - began_us;
        let extents_max = flash_bytes_max / base.geometry.extent_bytes;
        let image = image(base, &installer, cut);
        let named = image.as_ref().map(|image| image.clients.of::<Catalog>());
        // Also after an error: the shards note what is written until they have been copied.
        let moment = copy.finish(hashed, &installer, Some(extents_max), named);
        let trees = trees?;
        drop(installer);
        if base.log.sync() == Sync::Always {
            base.log.make_durable(io, moment.stamp, || base.drive.env().now_us()).await?;
            // They hold slots that the writes may need that they wait for.
            for tree in trees.values() {
                list.note_own(began_us, tree)?;
            }
            for tree in trees.values() {
                while !tree.is_durable()? {
                    tree.check().map_err(|_| FreezeError::FlashNeeded)?;
                    io.pause().await;
                }
            }
        }
        Ok(FrozenStore {
            id: base.log.give_stamp(),
            owner: options.owner.clone(),
            flash_bytes_max,
            begun_us: began_us,
            ends_us: AtomicU64::new(end_us(began_us, options.lasts)),
            pause_us,
            stamp,
            keyspaces,
            hashed: moment,
            trees,
            image,
            end: Mutex::default(),
            base: base.clone(),
        })
    }

    /// The keyspaces that were open, whether they still are or not.
    pub fn keyspaces(&self) -> &[(Keyspace, KeyspaceRef)] {
        &self.keyspaces
    }

    pub fn part(&self, keyspace: &Keyspace) -> FrozenPart {
        match keyspace.kind {
            KeyspaceKind::Hashed => FrozenPart::Hashed(Snapshot::of(&self.hashed, keyspace.id)),
            _ => FrozenPart::Ordered(self.trees.get(&keyspace.id).cloned()),
        }
    }

    /// What a backup needs of it.
    pub fn image(&self) -> Option<&StoreImage> {
        self.image.as_ref()
    }

    #[cfg(test)]
    pub fn segments_held(&self) -> std::collections::BTreeSet<u32> {
        self.hashed.pins.numbers()
    }

    pub fn moment_unix_ms(&self) -> u64 {
        self.hashed.now_ms
    }

    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    pub fn trees(&self) -> impl Iterator<Item = &Arc<FrozenTree>> {
        self.trees.values()
    }

    /// Why it has ended, if it has.
    pub fn ended(&self) -> Option<FreezeEnd> {
        let ended = *lock(&self.end);
        let is_expired = self.ends_us.load(Ordering::SeqCst) <= self.base.drive.env().now_us();
        let too_old = self.is_too_old().then_some(FreezeEnd::FlashNeeded);
        ended.or(too_old).or(is_expired.then_some(FreezeEnd::Expired))
    }

    /// An error if it has ended.
    pub fn check(&self) -> Result<(), FreezeError> {
        self.ended().map_or(Ok(()), |why| Err(FreezeError::Ended { id: self.id, why }))
    }

    /// Lets it last so long from now on.
    pub fn renew(&self, now_us: u64, lasts: Duration) -> Result<(), FreezeError> {
        self.check()?;
        self.ends_us.store(end_us(now_us, lasts), Ordering::SeqCst);
        Ok(())
    }

    /// Ends it, unless it has ended: what it held is let go.
    pub fn end(&self, why: FreezeEnd) {
        {
            let mut end = lock(&self.end);
            if end.is_some() {
                return;
            }
            *end = Some(why);
        }
        self.hashed.give_up();
        self.trees.values().for_each(|tree| tree.give_up());
    }

    /// Whether a part of it has given way. A tree does so by itself, before it is durable, if it is the oldest of those that keep flash.
    fn is_too_old(&self) -> bool {
        let is_gone = |tree: &Arc<FrozenTree>| tree.check() == Err(LayoutError::TooOld);
        self.hashed.check() == Err(LayoutError::TooOld) || self.trees.values().any(is_gone)
    }

    fn flash_bytes(&self, engine: &HashedEngine) -> u64 {
        self.hashed.flash_bytes(engine) + self.trees.values().map(|tree| tree.flash_bytes()).sum::<u64>()
    }

    pub fn report(&self, engine: &HashedEngine) -> FreezeReport {
        let now_us = engine.base.drive.env().now_us();
        let of_trees = self.trees.values().map(|tree| tree.memory_bytes()).sum::<usize>();
        FreezeReport {
            id: self.id,
            owner: self.owner.clone(),
            stamp: self.stamp,
            moment_unix_ms: self.hashed.now_ms,
            age_us: now_us.saturating_sub(self.begun_us),
            left_us: self.ends_us.load(Ordering::SeqCst).saturating_sub(now_us),
            pause_us: self.pause_us,
            copied_nodes: self.trees.values().map(|tree| tree.copied_nodes() as u64).sum(),
            keyspaces: self.keyspaces.len(),
            flash_bytes: self.flash_bytes(engine),
            memory_bytes: (self.hashed.memory_bytes() + of_trees) as u64,
        }
    }
}
