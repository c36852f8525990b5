//! The job of maintenance that ends freezes: when their time is over, when they keep too much, and when writers need what they keep.

use super::list::FreezeList;
use crate::hashed::HashedEngine;
use crate::ordered::engine::OrderedEngine;
use std::sync::Arc;
use tapetum_base::engine::job::{Job, Others};

/// How often it looks at what they keep.
const LOOK_US: u64 = 100_000;

pub struct FreezeJob {
    engine: Arc<HashedEngine>,
    ordered: Arc<OrderedEngine>,
    freezes: Arc<FreezeList>,
    /// The next look. What one freeze gives up comes back before another is ended.
    look_us: u64,
}

impl FreezeJob {
    pub fn new(engine: &Arc<HashedEngine>, ordered: &Arc<OrderedEngine>, freezes: &Arc<FreezeList>) -> FreezeJob {
        FreezeJob { engine: engine.clone(), ordered: ordered.clone(), freezes: freezes.clone(), look_us: 0 }
    }
}

impl Job for FreezeJob {
    fn step(&mut self, _: Others) -> bool {
        let now_us = self.engine.base.drive.env().now_us();
        if now_us < self.look_us || self.freezes.is_empty() {
            return false;
        }
        self.look_us = now_us + LOOK_US;
        self.freezes.end_due(&self.engine, now_us);
        self.engine.segments.hand_over_dead(&self.engine.extents);
        self.ordered.hand_over_dropped();
        self.engine.are_extents_wanted() && self.freezes.end_oldest(&self.engine)
    }

    fn is_changing(&self) -> bool {
        false
    }

    fn rests(&self) -> bool {
        self.freezes.is_empty()
    }

    fn give_up(&mut self) {}

    fn wind_down(&mut self) {}
}
