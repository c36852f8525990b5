//! Calls that wait: each runs requests to their end on a session that is kept for such calls.
//!
//! A [`Store`] has them for its default keyspace, a [`KeyspaceHandle`] for another one: they are written once, for both.

use crate::api::session::{Application, Busy, ItemPipeline, Limits, Session, Write};
use crate::api::store::Store;
use crate::freeze::FrozenStore;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::catalogue::Keyspace;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::request::{Condition, Outcome, Reply, Request};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::scan::Format;

/// An item as a reader gets it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    pub value: Vec<u8>,
    /// The client's flags.
    pub flags: u32,
    pub expiry: Expiry,
    /// Changes with every write of the key.
    pub stamp: u64,
}

/// An open keyspace of a store: blocking calls on its keys, from any thread. A clone is another handle on it. When the keyspace has
/// been dropped, each call says so, also when another one has its name by then.
#[derive(Clone, Debug)]
pub struct KeyspaceHandle {
    store: Store,
    keyspace: KeyspaceRef,
    application: Application,
    frozen: Option<FrozenIn>,
}

/// A keyspace as a freeze has it: what it reads is of that moment.
#[derive(Clone)]
struct FrozenIn {
    frozen: Arc<FrozenStore>,
    entry: Keyspace,
}

impl fmt::Debug for FrozenIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrozenIn({})", self.frozen.id)
    }
}

impl KeyspaceHandle {
    pub(crate) fn new(store: Store, keyspace: KeyspaceRef) -> KeyspaceHandle {
        KeyspaceHandle { store, keyspace, application: Application::default(), frozen: None }
    }

    /// The keyspace as a freeze has it. Only what is read of one moment may be asked of it.
    pub(crate) fn of_freeze(store: Store, keyspace: KeyspaceRef, frozen: Arc<FrozenStore>, entry: Keyspace) -> Self {
        KeyspaceHandle { frozen: Some(FrozenIn { frozen, entry }), ..KeyspaceHandle::new(store, keyspace) }
    }

    /// The freeze that it is read of, and what that knows of the keyspace; `None`: as it is.
    pub(crate) fn frozen(&self) -> Option<(&Arc<FrozenStore>, &Keyspace)> {
        self.frozen.as_ref().map(|FrozenIn { frozen, entry }| (frozen, entry))
    }

    /// The same keyspace, whose queries, graphs and fields are counted as those of an application, and get its share of the drive's units.
    pub fn of_application(self, application: Application) -> KeyspaceHandle {
        KeyspaceHandle { application, ..self }
    }

    /// The application that its work is counted as.
    pub fn application(&self) -> Application {
        self.application
    }

    /// The reference that requests to a session, and writes of a batch, name it by.
    pub fn keyspace(&self) -> KeyspaceRef {
        self.keyspace
    }

    pub fn id(&self) -> KeyspaceId {
        self.keyspace.id()
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// About how many items it has: see [`Store::keyspace_items`].
    pub fn item_count(&self) -> Result<u64, Error> {
        self.store.hashed().refuse_dropped(self.keyspace)?;
        let of_all = self.store.keyspace_items();
        Ok(of_all.into_iter().find(|(keyspace, _)| keyspace.id == self.id()).map_or(0, |(_, items)| items))
    }

    /// Limits of its requests and batches.
    pub fn limits(&self) -> Limits {
        Limits::of(self.store.hashed(), self.keyspace.kind())
    }

    /// The format of its keys and values, if [`Store::set_keyspace_format`] recorded one.
    ///
    /// # Errors
    /// [`KeyspaceError::Format`](crate::KeyspaceError::Format), if another version recorded it.
    pub fn format(&self) -> Result<Option<Format>, Error> {
        let base = self.store.hashed();
        base.refuse_dropped(self.keyspace)?;
        base.keyspaces.format(self.id())
    }

    fn scope(&self) -> (&Store, KeyspaceRef) {
        (&self.store, self.keyspace)
    }
}

/// The calls that a store has for its default keyspace, and a handle for its own.
macro_rules! keyspace_calls {
    ($holder:ty) => {
        impl $holder {
            /// Runs one request to its end.
            pub fn run(&self, request: Request<'_>) -> Result<(Outcome, Vec<u8>), Error> {
                let (store, keyspace) = self.scope();
                store.with_session(|session| {
                    while session.submit_to(keyspace, 0, request) == Err(Busy) {
                        session.poll(&mut Vec::new());
                    }
                    let reply = wait_for_one(session);
                    let value = reply.outcome.value().map(|value| session.bytes(value).to_vec()).unwrap_or_default();
                    match reply.outcome {
                        Outcome::Failed(error) => Err(error),
                        outcome => Ok((outcome, value)),
                    }
                })
            }

            pub fn get(&self, key: &[u8]) -> Result<Option<Item>, Error> {
                Ok(item(self.run(Request::Get { key })?))
            }

            /// Runs an item's value through programs of the drive, and gives what comes out; `None` when there is no such key. See
            /// [`Session::submit_through`].
            ///
            /// # Errors
            /// [`Error::Pipeline`], by the stage that went wrong; otherwise as a get.
            pub fn get_through(&self, key: &[u8], pipeline: &ItemPipeline) -> Result<Option<Vec<u8>>, Error> {
                let (store, keyspace) = self.scope();
                store.with_session(|session| {
                    while session.submit_through(keyspace, 0, key, pipeline) == Err(Busy) {
                        session.poll(&mut Vec::new());
                    }
                    match wait_for_one(session).outcome {
                        Outcome::Value { value, .. } => Ok(Some(session.bytes(value).to_vec())),
                        Outcome::Failed(error) => Err(error),
                        _ => Ok(None),
                    }
                })
            }

            /// Reads several keys at once; the answers are in the order of the keys.
            pub fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Item>>, Error> {
                let (store, keyspace) = self.scope();
                store.with_session(|session| {
                    let mut items = vec![None; keys.len()];
                    let mut failed = None;
                    let mut left = keys.len();
                    let mut replies = Vec::new();
                    let mut more = keys.iter().enumerate().peekable();
                    while left > 0 {
                        while let Some((token, key)) = more.next_if(|_| session.has_room()) {
                            let submitted = session.submit_to(keyspace, token as u64, Request::Get { key });
                            assert_eq!(submitted, Ok(()), "there is room");
                        }
                        poll_or_wait(session, &mut replies);
                        for reply in replies.drain(..) {
                            left -= 1;
                            let value =
                                reply.outcome.value().map(|value| session.bytes(value).to_vec()).unwrap_or_default();
                            match reply.outcome {
                                Outcome::Failed(error) => failed = Some(error),
                                outcome => items[reply.token as usize] = item((outcome, value)),
                            }
                        }
                    }
                    failed.map_or(Ok(items), Err)
                })
            }

            /// Stores a value; returns its stamp.
            pub fn put(&self, key: &[u8], value: &[u8]) -> Result<u64, Error> {
                self.put_until(key, value, Expiry::NONE)
            }

            /// Stores a value that expires at `expiry`. Returns its stamp.
            pub fn put_until(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<u64, Error> {
                let request = Request::Put { key, value, flags: 0, expiry, condition: Condition::Always };
                match self.run(request)?.0 {
                    Outcome::Stored { stamp } => Ok(stamp),
                    other => unreachable!("a put was answered with {other:?}"),
                }
            }

            /// Deletes a key; whether it was there.
            pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
                Ok(self.run(Request::Delete { key, stamp: None })?.0 == Outcome::Deleted)
            }

            /// Stores a value if the key's stamp is still `stamp`; the new stamp, or `None` when another write came first.
            pub fn compare_and_swap(&self, key: &[u8], value: &[u8], stamp: u64) -> Result<Option<u64>, Error> {
                let request =
                    Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Stamp(stamp) };
                match self.run(request)?.0 {
                    Outcome::Stored { stamp } => Ok(Some(stamp)),
                    _ => Ok(None),
                }
            }

            /// Adds to a decimal number; the sum, or `None` when the key is absent or no number.
            pub fn increment(&self, key: &[u8], delta: u64) -> Result<Option<u64>, Error> {
                let request =
                    Request::Increment { key, delta, decrement: false, initial: None, stamp: None, touch: None };
                match self.run(request)?.0 {
                    Outcome::Number { number, .. } => Ok(Some(number)),
                    _ => Ok(None),
                }
            }
        }
    };
}

keyspace_calls!(Store);
keyspace_calls!(KeyspaceHandle);

impl Store {
    fn scope(&self) -> (&Store, KeyspaceRef) {
        (self, KeyspaceRef::DEFAULT)
    }

    /// Writes several keys at once, each of the keyspace that it names: all or none, also across a crash.
    pub fn batch(&self, writes: &[Write<'_>]) -> Result<(), Error> {
        self.with_session(|session| {
            while session.submit_batch(0, writes) == Err(Busy) {
                session.wait(Some(Duration::from_millis(1)));
                session.poll(&mut Vec::new());
            }
            match wait_for_one(session).outcome {
                Outcome::Failed(error) => Err(error),
                _ => Ok(()),
            }
        })
    }
}

fn item((outcome, value): (Outcome, Vec<u8>)) -> Option<Item> {
    match outcome {
        Outcome::Value { flags, stamp, expiry, .. } => Some(Item { value, flags, expiry, stamp }),
        _ => None,
    }
}

pub(crate) fn poll_or_wait(session: &mut Session, replies: &mut Vec<Reply>) {
    session.wait_for_flash();
    session.poll(replies);
    if replies.is_empty() {
        session.wait(Some(Duration::from_millis(10)));
    }
}

fn wait_for_one(session: &mut Session) -> Reply {
    let mut replies = Vec::new();
    loop {
        poll_or_wait(session, &mut replies);
        if let Some(reply) = replies.pop() {
            return reply;
        }
    }
}
