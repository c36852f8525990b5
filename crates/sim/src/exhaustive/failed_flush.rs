//! A flush fails, the process ends and the power stays. The next opening reads the writes that the flush should have made durable, and no
//! later flush makes them durable. The power may fail at any moment until that opening has written them again.

use super::{Bench, Case, Count, Open, Strikes, ordered, parts};
use crate::model::Model;
use tapetum_drive::{FaultyFlash, Opcode};

/// More than a history of [`ordered`] makes.
const FLUSHES: u64 = 6;
/// Steps after which whatever waits for the flush was told that it failed.
const STEPS: u32 = 200;

/// The histories of ordered keyspaces, with each of their first flushes.
pub fn cases() -> impl Iterator<Item = Case> {
    let histories = ordered::cases().into_iter().filter(|case| !case.at_once);
    histories.flat_map(|case| {
        (1..=FLUSHES).map(move |nth| Case { strikes: Strikes::RecoveryAfterFlush(nth), ..case.clone() })
    })
}

impl Bench {
    pub(super) fn run_failed_flush(
        &self,
        case: &Case,
        nth: u64,
        base: &FaultyFlash,
        model: &Model,
    ) -> Result<Count, String> {
        let mut count = Count { cases: 1, ..Count::default() };
        let flash = base.fork_durable(3);
        let mut model = self.live_until_flush(case, nth, &flash, model)?;
        model.crash();
        let flash = flash.fork(4);
        flash.keep_cuts();
        let drive = self.drive(&flash, 0);
        let opened = Open::new(&drive, &self.options, model.clone());
        flash.take_cuts().iter().try_for_each(|cut| self.try_cut(cut, &model, &mut count))?;
        let mut open = opened?;
        open.read_all()?;
        self.try_cut(&flash.cut(), &open.model, &mut count)?;
        Ok(count)
    }

    /// Runs the steps on a drive whose flush of this number fails; the model then. The process ends.
    fn live_until_flush(&self, case: &Case, nth: u64, flash: &FaultyFlash, model: &Model) -> Result<Model, String> {
        let drive = self.drive(flash, 0);
        let mut open = Open::new(&drive, &self.options, model.clone())?;
        open.may_fail = true;
        flash.fail_nth(Opcode::Flush, nth);
        for (place, step) in (0..).zip(&case.steps) {
            open.submit(100 + place, parts(*step, place), &mut |_| Ok(()))?;
            open.drain(&mut |_| Ok(()))?;
            if open.has_failed {
                break;
            }
        }
        for _ in 0..STEPS {
            open.poll(&mut |_| Ok(()))?;
            open.store.maintain();
        }
        Ok(open.model)
    }
}
