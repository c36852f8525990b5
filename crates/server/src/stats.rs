//! The figures that `stats` answers with: counters that each worker keeps by itself, what the server was started with,
//! and the store's own figures.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tapetum::{Error, Outcome, Stats};

use crate::protocol::reply::{BinaryAnswer, Form, TextAnswer};

/// Declares the counters once: fields, sums, names and reset.
macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// One set a worker, which alone adds to it; anyone reads.
        #[derive(Debug, Default)]
        pub struct Counters { $(pub $name: AtomicU64,)* }

        impl Counters {
            /// Name and sum over `all` of every counter, in memcached's order.
            pub fn sums<'a>(all: impl Iterator<Item = &'a Counters> + Clone) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), all.clone().map(|one| one.$name.load(Ordering::Relaxed)).sum()),)*]
            }

            pub fn reset(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counters!(
    total_connections,
    rejected_connections,
    cmd_get,
    cmd_set,
    cmd_flush,
    cmd_touch,
    get_hits,
    get_misses,
    delete_misses,
    delete_hits,
    incr_misses,
    incr_hits,
    decr_misses,
    decr_hits,
    cas_misses,
    cas_hits,
    cas_badval,
    touch_hits,
    touch_misses,
    store_too_large,
    store_no_memory,
    bytes_read,
    bytes_written,
    total_items,
);

/// Adds `by` to a counter of this worker's own.
pub fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    /// Counts what became of a request.
    pub fn outcome(&self, form: Form, outcome: &Outcome) {
        let found = !matches!(outcome, Outcome::Missing);
        let pick = |hit, miss| if found { hit } else { miss };
        match outcome {
            Outcome::Failed(Error::ValueTooLarge { .. }) => return count(&self.store_too_large, 1),
            Outcome::Failed(Error::FullFlash | Error::FullIndex) => return count(&self.store_no_memory, 1),
            Outcome::Failed(_) | Outcome::NotNumber => return,
            Outcome::Stored { .. } => count(&self.total_items, 1),
            _ => {}
        }
        match form {
            Form::TextGet { touch, .. } | Form::Binary { answer: BinaryAnswer::Get { touch, .. }, .. } => match touch {
                false => count(pick(&self.get_hits, &self.get_misses), 1),
                true => count(pick(&self.touch_hits, &self.touch_misses), 1),
            },
            Form::Text { answer: TextAnswer::Touch, .. } | Form::Binary { answer: BinaryAnswer::Touch, .. } => {
                count(pick(&self.touch_hits, &self.touch_misses), 1);
            }
            Form::Text { answer: TextAnswer::Delete, .. } | Form::Binary { answer: BinaryAnswer::Delete, .. } => {
                count(pick(&self.delete_hits, &self.delete_misses), 1);
            }
            Form::Text { answer: TextAnswer::Increment { decrement }, .. }
            | Form::Binary { answer: BinaryAnswer::Increment { decrement }, .. } => match decrement {
                false => count(pick(&self.incr_hits, &self.incr_misses), 1),
                true => count(pick(&self.decr_hits, &self.decr_misses), 1),
            },
            Form::Text { answer: TextAnswer::Store { stamped: true }, .. }
            | Form::Binary { answer: BinaryAnswer::Store { stamped: true, .. }, .. } => match outcome {
                Outcome::Exists => count(&self.cas_badval, 1),
                _ => count(pick(&self.cas_hits, &self.cas_misses), 1),
            },
            _ => {}
        }
    }
}

/// What every worker knows, for `stats` to gather.
pub struct Figures {
    /// One a worker.
    pub counters: Vec<Counters>,
    pub connections: AtomicUsize,
    /// Name and value, as `stats settings` gives them.
    pub settings: Vec<(&'static str, String)>,
    pub connections_max: usize,
    pub started_unix_seconds: u32,
    pub store: Box<dyn Fn() -> Stats + Send + Sync>,
}

impl Figures {
    /// memcached's general figures, as far as they mean something here, then the store's.
    pub fn general(&self, now: u32) -> Vec<(&'static str, String)> {
        let store = (self.store)();
        let (user_us, system_us) = crate::os::cpu_time_us();
        let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        let mut lines: Vec<(&'static str, String)> = vec![
            ("pid", std::process::id().to_string()),
            ("uptime", now.saturating_sub(self.started_unix_seconds).to_string()),
            ("time", now.to_string()),
            ("version", crate::protocol::VERSION.to_string()),
            ("pointer_size", usize::BITS.to_string()),
            ("rusage_user", seconds(user_us)),
            ("rusage_system", seconds(system_us)),
            ("max_connections", self.connections_max.to_string()),
            ("curr_connections", self.connections.load(Ordering::Relaxed).to_string()),
        ];
        lines.extend(Counters::sums(self.counters.iter()).into_iter().map(|(name, sum)| (name, sum.to_string())));
        let rest = [
            ("threads", self.counters.len() as u64),
            ("limit_maxbytes", store.flash_limit_bytes),
            ("bytes", store.flash_used_bytes),
            ("curr_items", store.index_entries),
        ];
        lines.extend(rest.into_iter().chain(store_lines(&store)).map(|(name, value)| (name, value.to_string())));
        lines
    }

    pub fn reset(&self) {
        self.counters.iter().for_each(Counters::reset);
    }
}

/// The store's figures by name.
pub fn store_lines(store: &Stats) -> [(&'static str, u64); 17] {
    [
        ("index_entries", store.index_entries),
        ("index_bytes", store.index_bytes),
        ("memory_limit_bytes", store.memory_limit_bytes),
        ("memory_used_bytes", store.memory_used_bytes),
        ("flash_limit_bytes", store.flash_limit_bytes),
        ("flash_used_bytes", store.flash_used_bytes),
        ("user_write_bytes", store.user_write_bytes),
        ("flash_write_bytes", store.flash_write_bytes),
        ("log_write_bytes", store.log_write_bytes),
        ("get_from_flash", store.get_from_flash),
        ("get_flash_reads", store.get_flash_reads),
        ("get_flash_read_max_bytes", store.get_flash_read_max_bytes),
        ("flash_to_local_bytes", store.flash_to_local_bytes),
        ("local_to_host_bytes", store.local_to_host_bytes),
        ("key_check_reads", store.key_check_reads),
        ("flushes", store.flushes),
        ("collections", store.collections),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_workers_are_summed_and_reset() {
        let all = [Counters::default(), Counters::default()];
        count(&all[0].cmd_get, 2);
        count(&all[1].cmd_get, 3);
        assert!(Counters::sums(all.iter()).contains(&("cmd_get", 5)));
        all.iter().for_each(Counters::reset);
        assert!(Counters::sums(all.iter()).iter().all(|&(_, sum)| sum == 0));
    }

    #[test]
    fn a_stamp_that_differs_is_counted_apart() {
        let counters = Counters::default();
        let form = Form::Text { answer: TextAnswer::Store { stamped: true }, noreply: false };
        counters.outcome(form, &Outcome::Exists);
        counters.outcome(form, &Outcome::Missing);
        counters.outcome(form, &Outcome::Stored { stamp: 1 });
        let values = [&counters.cas_badval, &counters.cas_misses, &counters.cas_hits, &counters.total_items];
        assert_eq!(values.map(|value| value.load(Ordering::Relaxed)), [1; 4]);
    }
}
