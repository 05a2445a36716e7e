# Example job file. Each block has a comment that explains it.
#
#   steward job validate FILE   Check the file.
#   steward job plan FILE       Show the changes that a run would make.
#   steward job run FILE        Register the job and start it.

# An input variable. To set its value, use `-var greeting=hi`, `-var-file FILE` or the environment
# variable STEWARD_VAR_greeting. A variable without a default needs a value.
variable "greeting" {
  type        = string
  default     = "hello"
  description = "Text that the task prints"

  validation {
    condition     = strlen(var.greeting) > 0
    error_message = "The variable greeting must not be empty."
  }
}

# Local values. An expression computes each value, and the file can use it in several places.
locals {
  script = "while :; do echo \"$GREETING from $NOMAD_ALLOC_NAME\"; sleep 1; done"
}

job "example" {
  # The job type:
  #   service    Runs until you stop it.
  #   batch      Runs until its tasks succeed.
  #   system     A service on every feasible node.
  #   sysbatch   A batch job on every feasible node.
  type = "service"

  # The priority, from 1 to 100. If capacity is short, Steward places jobs with a higher priority
  # first.
  priority = 50

  # A condition for nodes: the job runs only on nodes that meet it. Steward interpolates
  # `${attr.…}`, `${node.…}` and `${meta.…}` for each node.
  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  # The rolling update from one version of the job to the next. If the new version does not become
  # healthy before the deadline, Steward reverts to the last stable version.
  update {
    max_parallel     = 1
    min_healthy_time = "5s"
    healthy_deadline = "1m"
    auto_revert      = true
  }

  # A task group: tasks that run together on one node. A job can have several groups.
  group "hello" {
    # The number of allocations of this group.
    count = 1

    # The restart policy: restart a failed task in its allocation, up to 2 times in 10 minutes. In
    # mode "fail", the allocation fails after the last attempt.
    restart {
      attempts = 2
      interval = "10m"
      delay    = "5s"
      mode     = "fail"
    }

    # The reschedule policy: replace a failed allocation. The delay doubles after each failure, up
    # to the maximum.
    reschedule {
      delay          = "30s"
      delay_function = "exponential"
      max_delay      = "10m"
      unlimited      = true
    }

    # A dynamic port: Steward reserves a free port. The task reads its number from the environment
    # variable NOMAD_PORT_http.
    network {
      port "http" {}
    }

    # Disk space for the files of the allocation, in MB.
    ephemeral_disk {
      size = 50
    }

    # A task: one command, which the driver runs.
    task "greeter" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", local.script]
      }

      # Environment variables of the task.
      env {
        GREETING = var.greeting
      }

      # The resources of the task: CPU in MHz, memory in MB.
      resources {
        cpu    = 100
        memory = 64
      }

      # The rotation of stdout and stderr: the number of files, and the size of each in MB.
      logs {
        max_files     = 2
        max_file_size = 5
      }

      # The timeout between the stop signal and SIGKILL.
      kill_timeout = "5s"
    }
  }
}
