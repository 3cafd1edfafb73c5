package parts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Command describes a program to start.
type Command struct {
	// Path and Args are as in exec.Command; Args does not repeat the path.
	Path string
	Args []string
	// Env is added to the environment of this process.
	Env []string
	// Dir is the working directory; empty means this process's.
	Dir string
	// Output receives stdout and stderr; nil discards them.
	Output io.Writer
	// Outlive lets the program live on when this process ends. By default it is killed then, however this process
	// ends: a test that panics or is killed leaves no server behind.
	Outlive bool
}

// Process is a started program. It signals only the process that it started itself; os.Process refuses to signal
// one that has been reaped, so a foreign process that got the same number is never hit.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // Closed by the goroutine of Start once the process has been reaped.
	err  error         // What Wait returned; read only after done.
}

// Start starts a program. The caller owns it and ends it with Stop or Kill.
func Start(c Command) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	p.cmd = exec.Command(c.Path, c.Args...)
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Dir = c.Dir
	p.cmd.Stdout, p.cmd.Stderr = c.Output, c.Output
	// In a group of its own, a Ctrl-C on the terminal does not reach it before whoever started it can end it well.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !c.Outlive {
		p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}

	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends, not when the process does, so that thread
		// is kept for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed once the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Err returns how the process ended, nil for exit code 0. It waits for the end.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// Signal sends a signal to this one process.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %d to process %d: %w", int(s), p.PID(), err)
	}
	return nil
}

// Pause stops the process with SIGSTOP, as a stalled machine would: its sockets stay open and accept, nothing answers.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Kill ends the process with SIGKILL and waits until it is gone. An ended process is no error.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// Stop asks the process to end with SIGTERM and waits for it. One that is still there after the grace is killed,
// which is an error.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			<-p.done
			return nil
		}
		return err
	}
	_ = p.Resume() // A paused process sees SIGTERM only once it goes on; one that is gone needs no resuming.
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("stop process %d: still running %v after SIGTERM", p.PID(), grace), p.Kill())
	}
}

// WaitSocket waits until somebody accepts on a Unix socket, and gives up at once when the process, whose socket it is
// to be, has ended.
func (p *Process) WaitSocket(path string, limit time.Duration) error {
	return Poll(context.Background(), limit, func() error {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn.Close()
		}
		if p.Ended() {
			return Final(fmt.Errorf("process %d ended before it listened on %s: %w", p.PID(), path, p.Err()))
		}
		return err
	})
}

// pollInterval is short against a server's start (50 ms and more) and long against the cost of a look.
const pollInterval = 5 * time.Millisecond

// Poll asks until ask returns nil and returns nil then; when the limit has passed it returns ask's last error. It is
// how to wait for another process: for a condition, never for a length of time.
func Poll(ctx context.Context, limit time.Duration, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if final, ok := errors.AsType[finalError](err); ok {
			return final.error
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %w", limit, err)
		case <-ticker.C:
		}
	}
}

// Final marks an error that no more asking can change, such as a server that has ended: Poll returns it at once.
func Final(err error) error { return finalError{err} }

type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }
