package rls

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxSocketPath is what the kernel's sockaddr_un holds, less the closing zero.
const maxSocketPath = 107

// probeTime bounds the wait for an answer when a socket is tried that nobody
// holds the lock of; on one machine a connect is a matter of microseconds.
const probeTime = time.Second

// lockPoll is how often a successor looks whether its predecessor has drained.
const lockPoll = 100 * time.Millisecond

// pathPoll is how often a server looks whether the path is still its own. It
// only says so.
const pathPoll = time.Second

// ErrServed is in the error of Listen when somebody else serves the Unix socket.
var ErrServed = errors.New("stop it, or take over")

// unixListener is a listening socket that was renamed to its path, so that the
// path never leads nowhere while a successor takes over, and the lock beside
// it, which says who serves.
type unixListener struct {
	*net.UnixListener
	path string
	own  fs.FileInfo // of the socket; its device and inode say whose the path is
	log  *slog.Logger

	mu       sync.Mutex
	lock     *lockFile
	unlinked bool // by us, or never ours to unlink again
}

// listenUnix binds a socket under a temporary name and renames it to path.
//
// The lock file path.lock belongs to the process that serves the path, until
// it has drained; it is never unlinked. Without the lock a start fails, unless
// it is to take over: then it renames at once and waits for the lock while it
// serves. A socket that nobody serves any more is replaced.
func listenUnix(ctx context.Context, path string, mode fs.FileMode, takeOver bool, log *slog.Logger) (_ *unixListener, err error) {
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("unix socket %s: a %s is there, not a socket; move it away or set another path", path, kindOf(info.Mode()))
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("unix socket: %w", err)
	}
	lock, err := openLock(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("unix socket %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = lock.close()
		}
	}()
	if err := lock.try(); err != nil && !(takeOver && errors.Is(err, errLocked)) {
		if errors.Is(err, errLocked) {
			return nil, fmt.Errorf("unix socket %s: process %s serves it and holds %s; %w", path, lock.holder(), lock.path(), ErrServed)
		}
		return nil, fmt.Errorf("unix socket %s: %w", path, err)
	}
	// A program without our lock may serve the path all the same.
	if !takeOver && answers(ctx, path) {
		return nil, fmt.Errorf("unix socket %s: another program serves it; %w", path, ErrServed)
	}
	u := &unixListener{path: path, lock: lock, log: log}
	if err := u.bind(ctx, mode); err != nil {
		return nil, fmt.Errorf("unix socket %s: %w", path, err)
	}
	if !lock.held {
		log.Info("took a unix socket over", "path", path, "from_process", lock.holder())
	}
	return u, nil
}

func checkSocketPath(path string) error {
	if strings.HasPrefix(path, "@") || strings.ContainsRune(path, 0) {
		return fmt.Errorf("unix socket %q: not a path in the file system; abstract sockets have neither permissions nor a hand-over, set a path", path)
	}
	if len(path) > maxSocketPath {
		return fmt.Errorf("unix socket %s: the path has %d bytes, a socket's may have %d; set a shorter one", path, len(path), maxSocketPath)
	}
	return nil
}

func kindOf(m fs.FileMode) string {
	switch m.Type() {
	case 0:
		return "file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "symbolic link"
	}
	return "special file"
}

// answers says whether somebody accepts connections at path.
func answers(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		// Nobody listens: refused, or no file. Anything else, as a full queue
		// or missing permissions, means that somebody does.
		return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
	}
	_ = c.Close()
	return true
}

// bind makes the socket in a directory of its own beside path, so that nobody
// can connect before it has its mode, and renames it.
func (u *unixListener) bind(ctx context.Context, mode fs.FileMode) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(u.path), ".w")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	temp := filepath.Join(dir, "s")
	if len(temp) > maxSocketPath {
		return fmt.Errorf("the directory's path is too long for the temporary name %s of %d bytes, a socket's may have %d; set a shorter one",
			temp, len(temp), maxSocketPath)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", temp)
	if err != nil {
		return err
	}
	u.UnixListener = l.(*net.UnixListener)
	// Go would unlink the temporary name, or, without it, whatever bears it.
	u.UnixListener.SetUnlinkOnClose(false)
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
	if err := os.Chmod(temp, mode.Perm()); err != nil {
		return err
	}
	if u.own, err = os.Lstat(temp); err != nil {
		return err
	}
	return u.lock.guarded(func() error { return os.Rename(temp, u.path) })
}

// Close closes the listener. The path is unlink's matter.
func (u *unixListener) Close() error { return u.UnixListener.Close() }

// owned says whether the path still leads to this socket.
func (u *unixListener) owned() bool {
	now, err := os.Lstat(u.path)
	return err == nil && os.SameFile(now, u.own)
}

// unlink removes the path if it still leads to this socket, which must be
// open: a closed one's inode number may be a successor's.
func (u *unixListener) unlink() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unlinked = true
	return u.lock.guarded(func() error {
		if !u.owned() {
			return nil
		}
		if err := os.Remove(u.path); err != nil {
			return fmt.Errorf("unix socket: %w", err)
		}
		return nil
	})
}

// unlock gives the lock to whoever waits for it. It comes after unlink.
func (u *unixListener) unlock() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.lock.close()
}

// watch takes the lock when the predecessor has drained, unless the path was
// taken over in turn: then the lock is the successor's to take. With the lock
// it goes on, to say when the path is lost. It returns when there is nothing
// left to wait for, or ctx ends.
func (u *unixListener) watch(ctx context.Context) {
	for {
		next := u.look()
		if next == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// look takes the lock if it can, and returns when to look again, 0 for never.
func (u *unixListener) look() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.unlinked || u.lost() {
		return 0
	}
	if u.lock.held {
		return pathPoll
	}
	err := u.lock.try()
	switch {
	case errors.Is(err, errLocked):
		return lockPoll
	case err != nil:
		u.log.Error("the unix socket's lock cannot be taken", "path", u.path, "error", err)
		return 0
	}
	u.log.Info("the unix socket's last owner has drained", "path", u.path)
	return pathPoll
}

// lost says, also in the log, that the path does not lead to this socket any
// more. As long as it cannot be looked at, nobody knows.
func (u *unixListener) lost() bool {
	switch now, err := os.Lstat(u.path); {
	case errors.Is(err, fs.ErrNotExist):
		u.log.Warn("the unix socket was removed", "path", u.path)
	case err != nil || os.SameFile(now, u.own):
		return false
	default:
		u.log.Info("another process took the unix socket over", "path", u.path)
	}
	return true
}
