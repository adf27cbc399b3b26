# verdict: format_error task=relu
