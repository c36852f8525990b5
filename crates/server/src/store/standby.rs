//! A served standby: goes over to later backups, and is promoted when somebody orders it.
//!
//! Threads: one, which blocks while stores are restored and opened.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use tapetum::backup::BackupError;
use tapetum::backup::lease::{Lease, Loss};
use tapetum::{Fence, Options, Place, Store};
use tapetum_drive::env::Env;
use tapetum_service::backups::release;
use tapetum_service::opening;
use tapetum_service::reply::PromotedRow;

use crate::store::backups::{BackupKeeper, BackupPlan};
use crate::store::follower::{FollowError, Follower, PromotionOrder};
use crate::store::store_slot::StoreSlot;

/// See the [module](self).
pub struct Standby {
    follower: Follower,
    slot: Arc<StoreSlot>,
    place: Place,
    /// For the store when it is promoted.
    options: Options,
    plan: BackupPlan,
    orders: Receiver<PromotionOrder>,
    /// The last warning.
    said: Option<String>,
}

impl Standby {
    pub fn new(
        follower: Follower,
        slot: &Arc<StoreSlot>,
        place: &Place,
        options: &Options,
        plan: BackupPlan,
        orders: Receiver<PromotionOrder>,
    ) -> Standby {
        let (slot, place, options) = (Arc::clone(slot), place.clone(), options.clone());
        slot.backups().begin(true, plan.every);
        slot.backups().note_made(follower.moment_ms());
        Standby { follower, slot, place, options, plan, orders, said: None }
    }

    /// Options for its stores as long as they are read: there are two for a moment, so each gets half of the memory.
    pub fn reading(options: &Options) -> Options {
        let memory_bytes = options.memory_bytes.map(|bytes| bytes / 2);
        Options { memory_bytes, capacity_bytes: None, create: false, ..options.clone() }
    }

    /// To be called often. When it was promoted, the keeper of its own backups.
    pub fn look(&mut self) -> Option<BackupKeeper> {
        if let Ok(order) = self.orders.try_recv() {
            let promoted = self.promote(&order);
            let (answer, keeper) = match promoted {
                Ok((row, keeper)) => (Ok(row), Some(keeper)),
                Err(error) => (Err(error.to_string()), None),
            };
            // Whoever asked may have left.
            let _ = order.answer.send(answer);
            return keeper;
        }
        match self.follower.look(&self.slot) {
            Ok(true) => {
                self.slot.backups().note_made(self.follower.moment_ms());
                tracing::debug!("went over to backup {}", self.follower.number());
            }
            Ok(false) => {}
            // It was pruned while it was read: there is a later one.
            Err(FollowError::Backup(BackupError::BadManifest { .. } | BackupError::Damaged { .. })) => {}
            Err(error) => {
                self.slot.backups().note_failed();
                let told = error.to_string();
                if self.said.as_ref() != Some(&told) {
                    tracing::warn!("the standby stays at backup {}: {told}; trying again", self.follower.number());
                    self.said = Some(told);
                }
                return None;
            }
        }
        self.said = None;
        None
    }

    /// Begins a generation, and opens the store to write.
    fn write(&mut self, lease: &mut Lease, loss: Loss) -> Result<(Store, PromotedRow), FollowError> {
        self.follower.end_following()?;
        let promoted = self.follower.promote(lease, loss)?;
        let store = opening::open(&self.place, &self.options)?;
        // The opening may have taken long.
        lease.keep()?;
        Ok((store, promoted))
    }

    fn promote(&mut self, order: &PromotionOrder) -> Result<(PromotedRow, BackupKeeper), FollowError> {
        tracing::info!("to be promoted: waiting for the lease of {}", self.follower.depot().place());
        let (mut lease, loss) = self.follower.take_lease(order.force, self.plan.lease_ms, &mut || true)?;
        let why = tapetum::Error::Unusable("the standby takes the place of its server: try again in a moment".into());
        if let Some(store) = self.slot.withdraw(&why) {
            drop(store);
        }
        let (store, promoted) = match self.write(&mut lease, loss) {
            Ok(written) => written,
            Err(error) => {
                release(lease);
                // It is read as before, and goes on following.
                self.slot.put_and_wait(self.follower.open()?)?;
                return Err(error);
            }
        };
        let fence = Fence::at(&Env::system(), lease.ends_ms());
        self.slot.fence(fence.clone());
        self.slot.put_and_wait(store)?;
        let io = |error: std::io::Error| FollowError::Io(format!("no thread for backups: {error}"));
        let keeper = BackupKeeper::start(Arc::clone(&self.slot), self.plan, lease, fence).map_err(io)?;
        tracing::info!(
            "promoted: serves writes as generation {} of {}, with backup {}",
            promoted.generation,
            self.follower.depot().place(),
            promoted.number
        );
        Ok((promoted, keeper))
    }
}
