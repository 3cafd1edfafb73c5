package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/weir-rl/weir/internal/parts"
)

// look reads who has a process id now.
func look(pid int) (process, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	executable, err := os.Readlink(dir + "/exe")
	if err != nil {
		return process{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return process{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	// The program's name, in parentheses, may hold blanks; the fields after it start with the third. The start time
	// is the 22nd, in ticks since the machine started.
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	if len(fields) < 20 {
		return process{}, fmt.Errorf("look at process %d: %q is no stat line", pid, stat)
	}
	return process{PID: pid, Executable: executable, Started: fields[19]}, nil
}

// end ends the process with SIGTERM, and with SIGKILL if that does not help, unless it has ended before.
func (p process) end() error {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if !p.runs() {
			return nil
		}
		if err := syscall.Kill(p.PID, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end process %d: %w", p.PID, err)
		}
		err := parts.Poll(context.Background(), stopLimit, func() error {
			if p.runs() {
				return errors.New("still running")
			}
			return nil
		})
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("end process %d: still running after SIGKILL", p.PID)
}

// runs reports whether the id still belongs to the process that was remembered. A dead one that nobody has waited for
// has no executable.
func (p process) runs() bool {
	now, err := look(p.PID)
	return err == nil && now == p
}
