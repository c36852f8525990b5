//! The door as a whole: its threads, its sockets, and its end.
//!
//! Threads: [`FlightDoor::start`] and [`FlightDoor::stop`] are one's; two threads move bytes, and answers have their own.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use rustix::rand::{GetRandomFlags, getrandom};
use tapetum::Place;
use tapetum_access::gate::Gate;
use tapetum_access::served::Served;
use tapetum_service::serving_store::ServingStore;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;

use crate::answering::{ANSWERS_MAX, DoorShared};
use crate::doorkeeper::Doorkeeper;
pub use crate::incoming::Listening;
use crate::incoming::incoming;
use crate::moments::Moments;
use crate::service::Calls;
use crate::ticket::TicketOffice;

/// Threads that move bytes.
const THREADS: usize = 2;
/// A message is not longer: clients refuse longer ones as well. A value of 16 MiB has room in none, and goes over the socket or memcached.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Bytes of a request that may be on their way before they are read.
const WINDOW_BYTES: u32 = 4 << 20;
/// A client that says nothing is asked whether it is there, and let go if it is not.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long calls under way may take when the server stops.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Tells this door's clients from those of other doors, which share the memory.
const FLIGHT: u64 = 1 << 61;

/// See the [module](self).
pub struct FlightDoor {
    shared: Arc<DoorShared>,
    runtime: Runtime,
    stop: watch::Sender<bool>,
    serving: Vec<JoinHandle<()>>,
}

impl FlightDoor {
    /// Answers whoever connects: users who log in, if there is a gate.
    ///
    /// # Errors
    /// If the system refuses threads, random bytes or the sockets.
    pub fn start(
        listening: Vec<Listening>,
        source: Box<dyn ServingStore>,
        place: Place,
        compute_units: Vec<(String, u16)>,
        gate: Option<Arc<Gate>>,
    ) -> io::Result<FlightDoor> {
        let mut random = [0; 24];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let (key, first) = random.split_at(16);
        let key = key.try_into().map_err(io::Error::other)?;
        let first = u64::from_le_bytes(first.try_into().map_err(io::Error::other)?);
        let (office, moments) = (TicketOffice::new(key), Arc::new(Moments::new(first)));
        let shared = Arc::new(DoorShared::new(
            Arc::new(Served::new(source, place, compute_units, FLIGHT)),
            office,
            moments,
            gate,
        ));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(ANSWERS_MAX)
            .thread_name("flight")
            .enable_io()
            .enable_time()
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let mut serving = Vec::new();
        for listening in listening {
            serving.push(serve(&runtime, listening, &shared, stopped.clone())?);
        }
        Ok(FlightDoor { shared, runtime, stop, serving })
    }

    /// Lets everybody go, and waits until nothing holds the store; not for long.
    pub fn stop(self) {
        self.shared.served.stop();
        // Nobody hears it who has ended already.
        let _ = self.stop.send(true);
        self.runtime.block_on(async {
            for serving in self.serving {
                let _ = tokio::time::timeout(STOP_PATIENCE, serving).await;
            }
        });
        self.runtime.shutdown_timeout(STOP_PATIENCE);
    }
}

fn serve(
    runtime: &Runtime,
    listening: Listening,
    shared: &Arc<DoorShared>,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<JoinHandle<()>> {
    let calls = FlightServiceServer::new(Calls { shared: Arc::clone(shared) })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    let calls = Doorkeeper { calls, shared: Arc::clone(shared) };
    let router = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
        .add_service(calls);
    let end = async move {
        // An error: the door is gone.
        let _ = stopped.wait_for(|is_stopping| *is_stopping).await;
    };
    // Sockets are made known to the runtime.
    let _runtime = runtime.enter();
    let incoming = incoming(listening)?;
    Ok(runtime.spawn(async move { told(router.serve_with_incoming_shutdown(incoming, end).await) }))
}

fn told(served: Result<(), tonic::transport::Error>) {
    if let Err(error) = served {
        tracing::error!("nobody is answered over Flight any more: {error}; restart the server to have it again");
    }
}
