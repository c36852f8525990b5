//! The model of a store that begins with one moment of another one, as a restored backup does.

use super::Model;
use super::key::{Key, OperationId};

impl Model {
    /// When everything of each key may be deleted. A moment that is kept from now on may have any of these plans.
    pub fn clear_times(&self) -> Vec<Vec<u32>> {
        self.keys.iter().map(Key::clear_times).collect()
    }

    /// Closes reads of keys as those of a freeze, and makes a model that begins with what they may have got. Of keys that were not read there is
    /// no item. `clear_times`: as they were when the reads were submitted.
    pub fn moment(&mut self, id: OperationId, clear_times: &[Vec<u32>]) -> Model {
        let is_forgetful = self.prefix.is_some();
        let mut moment = Model::new(self.keys.len(), is_forgetful, self.rules.now_ms);
        moment.rules.value_bytes_max = self.rules.value_bytes_max;
        moment.rules.evictions.stamp_max = self.rules.evictions.stamp_max;
        moment.in_pages.clone_from(&self.in_pages);
        for key in self.scans.remove(&id).unwrap_or_default() {
            self.note(key, || format!("the moment of backup {id} is kept"));
            let mut times = clear_times[key].clone();
            let answers = self.keys[key].close_read(id, self.rules);
            times.extend(self.keys[key].clear_times());
            self.keys[key].withdraw(id);
            moment.keys[key] = Key::of_answers(&answers, &times, self.rules.now_ms, is_forgetful);
        }
        moment.events.clone_from(&self.events);
        moment
    }
}
