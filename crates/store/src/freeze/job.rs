//! The job of maintenance that ends freezes: when their time is over, when they keep too much, and when writers need what they keep.

use super::list::FreezeList;
use crate::hashed::HashedEngine;
use crate::ordered::engine::OrderedEngine;
use std::sync::Arc;
use tapetum_base::engine::job::{Job, Others};
use tapetum_base::media::io::lock;

/// How often it looks whether writers need flash. What one freeze gives up comes back before another is ended.
const LOOK_US: u64 = 100_000;
/// How often it looks at what each keeps, which takes a look at each slot.
const KEPT_US: u64 = 1_000_000;

pub struct FreezeJob {
    engine: Arc<HashedEngine>,
    ordered: Arc<OrderedEngine>,
    freezes: Arc<FreezeList>,
    /// When it looks next whether writers need flash.
    look_us: u64,
    /// When it looks next at what each freeze keeps.
    kept_us: u64,
}

impl FreezeJob {
    pub fn new(engine: &Arc<HashedEngine>, ordered: &Arc<OrderedEngine>, freezes: &Arc<FreezeList>) -> FreezeJob {
        FreezeJob { engine: engine.clone(), ordered: ordered.clone(), freezes: freezes.clone(), look_us: 0, kept_us: 0 }
    }
}

impl Job for FreezeJob {
    fn step(&mut self, _: Others) -> bool {
        let now_us = self.engine.base.drive.env().now_us();
        if now_us < self.look_us || self.freezes.is_empty() {
            return false;
        }
        self.look_us = now_us + LOOK_US;
        self.freezes.end_expired();
        if now_us >= self.kept_us {
            self.kept_us = now_us + KEPT_US;
            self.freezes.end_greedy(&self.engine);
            self.engine.segments.hand_over_dead(&self.engine.extents);
            self.ordered.hand_over_dropped();
        }
        let has_ended = self.engine.are_extents_wanted() && self.freezes.end_oldest(&self.engine);
        // A writer that still wants extents asks again before the next look.
        lock(&self.engine.extents).forget_refusals();
        has_ended
    }

    fn is_changing(&self) -> bool {
        false
    }

    fn give_up(&mut self) {}

    fn wind_down(&mut self) {}
}
