//! The thread on which a depot talks to its server. Callers block until it has answered.
//!
//! It is none of the callers': one of those could be in the middle of another runtime, and connections are watched between calls as well.

use std::future::Future;
use std::io;
use std::sync::mpsc::sync_channel;

use tapetum_drive::Env;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// See the [module](self). The thread ends when this is dropped.
pub struct Runner {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Runner {
    pub fn start() -> io::Result<Runner> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, (stop, stopped)) = (runtime.handle().clone(), oneshot::channel::<()>());
        Env::system().spawn("tapetum-depot", move || {
            let _ = runtime.block_on(stopped);
            // A name that is still looked up is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Runner { handle, _stop: stop })
    }

    /// Runs to its end. `None`: it panicked.
    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (sender, receiver) = sync_channel(1);
        self.handle.spawn(async move {
            let _ = sender.send(work.await);
        });
        receiver.recv().ok()
    }
}
