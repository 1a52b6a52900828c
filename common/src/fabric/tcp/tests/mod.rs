//! Client and target together, over real sockets of the loopback interface.

mod bed;
mod contract;
mod faults;
mod flow;
mod measure;
mod proxy;
mod replies;
mod stream;
