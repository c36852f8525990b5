//! A request to maintenance, on whose end a caller may wait.

use crate::error::Error;
use crate::media::io::lock;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tapetum_drive::ProcessMark;

/// A request to maintenance that is in progress or has just ended. Clones share it.
pub struct UnderWay<T> {
    state: Arc<AskedState<T>>,
}

struct AskedState<T> {
    asked: T,
    result: Mutex<Option<Result<(), Error>>>,
    ended: Condvar,
    made: ProcessMark,
}

impl<T> Clone for UnderWay<T> {
    fn clone(&self) -> UnderWay<T> {
        UnderWay { state: self.state.clone() }
    }
}

impl<T> UnderWay<T> {
    pub fn new(asked: T) -> UnderWay<T> {
        let (result, ended, made) = (Mutex::new(None), Condvar::new(), ProcessMark::now());
        UnderWay { state: Arc::new(AskedState { asked, result, ended, made }) }
    }

    /// The result, once the request has ended.
    pub fn result(&self) -> Option<Result<(), Error>> {
        if !self.state.made.is_here() {
            return Some(Err(Error::Forked));
        }
        lock(&self.state.result).clone()
    }

    /// Waits for the end of the request, or for `timeout`.
    pub fn wait(&self, timeout: Duration) {
        if !self.state.made.is_here() {
            return;
        }
        let result = lock(&self.state.result);
        drop(self.state.ended.wait_timeout_while(result, timeout, |result| result.is_none()));
    }

    pub fn asked(&self) -> &T {
        &self.state.asked
    }

    pub fn end(&self, result: Result<(), Error>) {
        *lock(&self.state.result) = Some(result);
        self.state.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_drive::Env;

    #[test]
    fn who_waits_sees_the_end() {
        let waiting = UnderWay::new(1);
        waiting.wait(Duration::from_millis(1));
        assert_eq!(waiting.result(), None);
        let maintenance = waiting.clone();
        let ending = Env::system().spawn("ending", move || maintenance.end(Ok(()))).unwrap();
        waiting.wait(Duration::from_secs(600));
        assert_eq!(waiting.result(), Some(Ok(())));
        ending.join().unwrap();
    }
}
