// Package authority debits budgets in Redis. It takes one request's checks
// (limit.Ask), merges what waits into batches of one script call each, and
// writes the verdicts in place: all of a request, or none and a limit.Class
// that says why.
//
// It assumes one primary whose clock is the only one that counts. It gives up
// at an ask's deadline, always; what may then still have been debited is
// exactly the classes that are Ambiguous. Nothing is sent twice unless the
// first send cannot have been executed (semantics S25).
//
// Bounds: Config.QueueCalls waiting callers and as many waiting keys, two
// flights of at most 64 keys and 256 checks, one connection for each flight.
// All methods of Redis are safe for concurrent use.
package authority
